// Device and host memory, copies, and CUDA IPC.
#include "machine.h"

using namespace pc_emulated;

namespace {

bool pinned(const void* pointer) {
  const std::lock_guard lock(state().mutex);
  return find(state().host, pointer) != state().host.end();
}

cudaError_t release(void* pointer, bool mapped) {
  if (forbidden()) return cudaErrorStreamCaptureUnsupported;
  drain_all();
  const std::lock_guard lock(state().mutex);
  const auto found = state().allocations.find(static_cast<char*>(pointer));
  if (found == state().allocations.end() || found->second.mapped != mapped) return cudaErrorInvalidValue;
  munmap(found->first, found->second.bytes);
  close(found->second.fd);
  state().allocations.erase(found);
  return cudaSuccess;
}

}  // namespace

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  if (forbidden()) return cudaErrorStreamCaptureUnsupported;
  if (flag("PC_EMULATED_STRICT_ALLOCATION") && kernels_run()) return cudaErrorMemoryAllocation;
  bytes = std::max<size_t>(bytes, 1);
  const int fd = make_shared(bytes);
  char* at = fd < 0 ? nullptr : map_shared(fd, bytes);
  if (at == nullptr) return cudaErrorMemoryAllocation;
  const std::lock_guard lock(state().mutex);
  state().allocations[at] = {bytes, fd, device, false};
  *pointer = at;
  return cudaSuccess;
}
cudaError_t cudaFree(void* pointer) { return pointer == nullptr ? cudaSuccess : release(pointer, false); }
cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned) {
  if (forbidden()) return cudaErrorStreamCaptureUnsupported;
  *pointer = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
  const std::lock_guard lock(state().mutex);
  state().host[static_cast<char*>(*pointer)] = {bytes, -1, device, false};
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* pointer) {
  if (forbidden()) return cudaErrorStreamCaptureUnsupported;
  const std::lock_guard lock(state().mutex);
  state().host.erase(static_cast<char*>(pointer));
  std::free(pointer);
  return cudaSuccess;
}
cudaError_t cudaHostGetDevicePointer(void** at, void* host, unsigned) {
  *at = host;
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  const std::lock_guard lock(state().mutex);
  *attributes = {};
  const auto found = find(state().allocations, pointer);
  if (found == state().allocations.end()) return cudaSuccess;
  attributes->type = cudaMemoryTypeDevice;
  attributes->device = found->second.device;
  attributes->devicePointer = const_cast<void*>(pointer);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* into, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  const bool uploads = kind == cudaMemcpyHostToDevice, late = uploads && pinned(from);
  if (uploads && !late && real(stream)->capture == nullptr) {  // pageable memory is read before the call returns
    enqueue(stream,
            [=, copy = std::string(static_cast<const char*>(from), bytes)] { std::memcpy(into, copy.data(), bytes); });
    return cudaSuccess;
  }
  enqueue(stream, [=, delay = std::chrono::microseconds(late ? number("PC_EMULATED_LATE_COPIES", 0) : 0)] {
    std::this_thread::sleep_for(delay);
    std::memmove(into, from, bytes);
  });
  return cudaSuccess;
}
namespace {
// Whole pages of zeros are given back to the kernel: a rank's scratch of 64 MiB is zeroed whole and used in part.
void fill(char* at, int value, size_t bytes) {
  constexpr size_t kPage = 4096;
  const size_t before = std::min(bytes, -reinterpret_cast<uintptr_t>(at) % kPage);
  const size_t whole = (bytes - before) / kPage * kPage;
  if (value != 0 || whole == 0 || madvise(at + before, whole, MADV_REMOVE) != 0) {
    std::memset(at, value, bytes);
    return;
  }
  std::memset(at, 0, before);
  std::memset(at + before + whole, 0, bytes - before - whole);
}
}  // namespace

cudaError_t cudaMemsetAsync(void* into, int value, size_t bytes, cudaStream_t stream) {
  enqueue(stream, [=] { fill(static_cast<char*>(into), value, bytes); });
  return cudaSuccess;
}

namespace {
struct IpcHandle {
  int pid, fd;
  size_t bytes;
};
static_assert(sizeof(IpcHandle) <= sizeof(cudaIpcMemHandle_t));
}  // namespace

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* pointer) {
  if (flag("PC_EMULATED_NO_IPC")) return cudaErrorNotSupported;
  const std::lock_guard lock(state().mutex);
  const auto found = find(state().allocations, pointer);
  if (found == state().allocations.end()) return cudaErrorInvalidValue;
  const IpcHandle made{getpid(), found->second.fd, found->second.bytes};
  std::memset(handle->reserved, 0, sizeof handle->reserved);
  std::memcpy(handle->reserved, &made, sizeof made);
  return cudaSuccess;
}
cudaError_t cudaIpcOpenMemHandle(void** pointer, cudaIpcMemHandle_t handle, unsigned) {
  if (forbidden()) return cudaErrorStreamCaptureUnsupported;
  IpcHandle given{};
  std::memcpy(&given, handle.reserved, sizeof given);
  if (given.pid == getpid()) return cudaErrorInvalidValue;  // as in CUDA
  const std::string path = "/proc/" + std::to_string(given.pid) + "/fd/" + std::to_string(given.fd);
  const int fd = flag("PC_EMULATED_BROKEN_PEER") ? make_shared(given.bytes) : open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return cudaErrorMapBufferObjectFailed;
  char* at = map_shared(fd, given.bytes);
  if (at == nullptr) return cudaErrorMapBufferObjectFailed;
  const std::lock_guard lock(state().mutex);
  state().allocations[at] = {given.bytes, fd, device, true};
  *pointer = at;
  return cudaSuccess;
}
cudaError_t cudaIpcCloseMemHandle(void* pointer) { return release(pointer, true); }
