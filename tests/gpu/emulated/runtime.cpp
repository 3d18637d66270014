// The implementation of cuda_runtime.h.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cuda.h"
#include "cuda_runtime.h"

namespace pc_emulated {

// A thread that does one thing after the other; while it is captured, things go into a graph instead.
struct Stream {
  Stream() : worker([this] { work(); }) {}
  ~Stream() {
    {
      const std::lock_guard lock(mutex);
      ends = true;
    }
    changed.notify_all();
    worker.join();
  }
  void add(std::function<void()> todo) {
    {
      const std::lock_guard lock(mutex);
      queue.push_back(std::move(todo));
      ++added;
    }
    changed.notify_all();
  }
  void drain() {
    std::unique_lock lock(mutex);
    const uint64_t until = added;
    changed.wait(lock, [&] { return done >= until; });
  }
  bool idle() {
    const std::lock_guard lock(mutex);
    return done == added;
  }
  void work() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return ends || !queue.empty(); });
      if (queue.empty()) return;
      const auto next = std::move(queue.front());
      queue.pop_front();
      lock.unlock();
      next();
      lock.lock();
      ++done;
      changed.notify_all();
    }
  }
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> queue;
  uint64_t added = 0, done = 0;
  bool ends = false;
  Graph* capture = nullptr;
  const unsigned long long id = ++ids;
  static inline std::atomic<unsigned long long> ids{0};
  std::thread worker;  // last: it uses all of the above
};

struct Graph { std::vector<std::function<void()>> nodes; };

// Work in streams shares it with the handle: an event may be destroyed before who waits for it has come so far.
struct EventState {
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t recorded = 0, happened = 0;
  std::chrono::steady_clock::time_point at;
  void wait(uint64_t until) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return happened >= until; });
  }
};

struct Event { std::shared_ptr<EventState> state = std::make_shared<EventState>(); };

namespace {

struct Allocation {
  size_t bytes;
  int fd;
  int device;
  bool mapped;  // a peer's
};

struct State {
  std::mutex mutex;
  std::map<char*, Allocation> allocations;
  std::map<char*, size_t> host;
  std::map<CUmemGenericAllocationHandle, Allocation> handles;
  CUmemGenericAllocationHandle next_handle = 1;
  std::mutex streams_mutex;
  std::vector<std::shared_ptr<Stream>> streams;
  Stream legacy;
};

State& state() {
  static auto* state = new State;  // threads may outlive statics
  return *state;
}

int number(const char* name, int fallback) {
  const char* text = std::getenv(name);
  return text == nullptr || *text == '\0' ? fallback : std::atoi(text);
}

bool flag(const char* name) { return number(name, 0) != 0; }

thread_local int device = 0;

char* map_shared(int fd, size_t bytes) {
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return at == MAP_FAILED ? nullptr : static_cast<char*>(at);
}

int make_shared(size_t bytes) {
  const int fd = memfd_create("emulated-device-memory", MFD_CLOEXEC);
  if (fd >= 0 && ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    close(fd);
    return -1;
  }
  return fd;
}

// The allocation that holds an address.
std::map<char*, Allocation>::iterator find(const void* pointer) {
  auto& all = state().allocations;
  auto next = all.upper_bound(static_cast<char*>(const_cast<void*>(pointer)));
  if (next == all.begin()) return all.end();
  --next;
  return static_cast<const char*>(pointer) < next->first + next->second.bytes ? next : all.end();
}

// Memory is not taken away from under work in flight: cudaFree waits; other threads may use streams meanwhile.
void drain_all() {
  std::vector<std::shared_ptr<Stream>> streams;
  {
    const std::lock_guard lock(state().streams_mutex);
    streams = state().streams;
  }
  state().legacy.drain();
  for (const auto& stream : streams) stream->drain();
}

Stream* real(Stream* stream) { return stream == nullptr ? &state().legacy : stream; }

}  // namespace

unsigned multiprocessors() { return static_cast<unsigned>(number("PC_EMULATED_SMS", 8)); }

void enqueue(Stream* stream, std::function<void()> work) {
  Stream* at = real(stream);
  if (at->capture != nullptr) at->capture->nodes.push_back(std::move(work));
  else at->add(std::move(work));
}

void run_grid(unsigned blocks, unsigned threads, const std::function<void()>& thread) {
  std::vector<std::unique_ptr<Block>> all;
  for (unsigned b = 0; b < blocks; ++b) all.push_back(std::make_unique<Block>(threads));
  std::vector<std::thread> running;
  for (unsigned b = 0; b < blocks; ++b) {
    for (unsigned t = 0; t < threads; ++t) {
      running.emplace_back([&, b, t] {
        block = all[b].get();
        block_index = b;
        thread_index = t;
        block_dim = threads;
        grid_dim = blocks;
        turn = 0;
        thread();
      });
    }
  }
  for (std::thread& one : running) one.join();
}

}  // namespace pc_emulated

using namespace pc_emulated;

cudaError_t cudaGetDeviceCount(int* count) {
  *count = number("PC_EMULATED_DEVICES", 1);
  return *count > 0 ? cudaSuccess : cudaErrorNoDevice;
}
cudaError_t cudaGetDevice(int* found) {
  *found = device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int wanted) {
  if (wanted < 0 || wanted >= number("PC_EMULATED_DEVICES", 1)) return cudaErrorInvalidDevice;
  device = wanted;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* prop, int which) {
  if (which < 0 || which >= number("PC_EMULATED_DEVICES", 1)) return cudaErrorInvalidDevice;
  std::memset(static_cast<void*>(prop), 0, sizeof *prop);
  std::strcpy(prop->name, "emulated on CPU threads");
  prop->uuid.bytes[0] = static_cast<char>(which + 1);
  prop->totalGlobalMem = size_t{1} << 30;
  prop->major = 9;
  prop->multiProcessorCount = static_cast<int>(multiprocessors());
  prop->l2CacheSize = 1 << 16;
  prop->pciBusID = which;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: *value = 4; break;
    case cudaDevAttrMultiProcessorCount: *value = static_cast<int>(multiprocessors()); break;
    case cudaDevAttrComputeCapabilityMajor: *value = 9; break;
    case cudaDevAttrComputeCapabilityMinor: *value = 0; break;
    case cudaDevAttrCooperativeLaunch: *value = 1; break;
  }
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) { return cudaDriverGetVersion(version); }
cudaError_t cudaGetLastError() { return cudaSuccess; }

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorNoDevice: return "cudaErrorNoDevice";
    case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
    case cudaErrorMapBufferObjectFailed: return "cudaErrorMapBufferObjectFailed";
    case cudaErrorCooperativeLaunchTooLarge: return "cudaErrorCooperativeLaunchTooLarge";
    case cudaErrorNotSupported: return "cudaErrorNotSupported";
    default: return "cudaErrorUnknown";
  }
}
const char* cudaGetErrorString(cudaError_t) { return "emulated"; }

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  const int fd = make_shared(std::max<size_t>(bytes, 1));
  if (fd < 0) return cudaErrorMemoryAllocation;
  char* at = map_shared(fd, std::max<size_t>(bytes, 1));
  if (at == nullptr) return cudaErrorMemoryAllocation;
  const std::lock_guard lock(state().mutex);
  state().allocations[at] = {std::max<size_t>(bytes, 1), fd, device, false};
  *pointer = at;
  return cudaSuccess;
}
cudaError_t cudaFree(void* pointer) {
  if (pointer == nullptr) return cudaSuccess;
  drain_all();
  const std::lock_guard lock(state().mutex);
  const auto found = state().allocations.find(static_cast<char*>(pointer));
  if (found == state().allocations.end() || found->second.mapped) return cudaErrorInvalidValue;
  munmap(found->first, found->second.bytes);
  close(found->second.fd);
  state().allocations.erase(found);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned) {
  *pointer = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
  const std::lock_guard lock(state().mutex);
  state().host[static_cast<char*>(*pointer)] = bytes;
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* pointer) {
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
  const auto found = find(pointer);
  if (found == state().allocations.end()) return cudaSuccess;
  attributes->type = cudaMemoryTypeDevice;
  attributes->device = found->second.device;
  attributes->devicePointer = const_cast<void*>(pointer);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* into, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  if (kind == cudaMemcpyHostToDevice &&
      real(stream)->capture == nullptr) {  // pageable memory is read before the call returns
    std::shared_ptr<char[]> copy(new char[std::max<size_t>(bytes, 1)]);
    std::memcpy(copy.get(), from, bytes);
    enqueue(stream, [=] { std::memcpy(into, copy.get(), bytes); });
  } else {
    enqueue(stream, [=] { std::memmove(into, from, bytes); });
  }
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* into, int value, size_t bytes, cudaStream_t stream) {
  enqueue(stream, [=] { std::memset(into, value, bytes); });
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
  const auto found = find(pointer);
  if (found == state().allocations.end()) return cudaErrorInvalidValue;
  const IpcHandle made{getpid(), found->second.fd, found->second.bytes};
  std::memset(handle->reserved, 0, sizeof handle->reserved);
  std::memcpy(handle->reserved, &made, sizeof made);
  return cudaSuccess;
}
cudaError_t cudaIpcOpenMemHandle(void** pointer, cudaIpcMemHandle_t handle, unsigned) {
  IpcHandle given{};
  std::memcpy(&given, handle.reserved, sizeof given);
  if (given.pid == getpid()) return cudaErrorInvalidValue;  // as CUDA has it
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
cudaError_t cudaIpcCloseMemHandle(void* pointer) {
  drain_all();
  const std::lock_guard lock(state().mutex);
  const auto found = state().allocations.find(static_cast<char*>(pointer));
  if (found == state().allocations.end() || !found->second.mapped) return cudaErrorInvalidValue;
  munmap(found->first, found->second.bytes);
  close(found->second.fd);
  state().allocations.erase(found);
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  auto made = std::make_shared<Stream>();
  *stream = made.get();
  const std::lock_guard lock(state().streams_mutex);
  state().streams.push_back(std::move(made));
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  std::shared_ptr<Stream> last;  // ends its thread outside the lock
  const std::lock_guard lock(state().streams_mutex);
  auto& all = state().streams;
  const auto found = std::find_if(all.begin(), all.end(), [&](const auto& one) { return one.get() == stream; });
  if (found == all.end()) return cudaErrorInvalidValue;
  last = std::move(*found);
  all.erase(found);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (real(stream)->capture != nullptr) return cudaErrorStreamCaptureUnsupported;
  real(stream)->drain();
  return cudaSuccess;
}
// Also for the emulated NCCL, which is another library: found by its name.
extern "C" __attribute__((visibility("default"))) cudaError_t cudaLaunchHostFunc(cudaStream_t stream,
                                                                                 void (*work)(void*), void* data) {
  enqueue(stream, [=] { work(data); });
  return cudaSuccess;
}
cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long* id) {
  *id = real(stream)->id;
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) { return real(stream)->idle() ? cudaSuccess : cudaErrorNotReady; }
cudaError_t cudaDeviceSynchronize() {
  drain_all();
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new Event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const auto state = event->state;
  uint64_t mine = 0;
  {
    const std::lock_guard lock(state->mutex);
    mine = ++state->recorded;
  }
  enqueue(stream, [=] {
    {
      const std::lock_guard lock(state->mutex);
      state->happened = std::max(state->happened, mine);
      state->at = std::chrono::steady_clock::now();
    }
    state->changed.notify_all();
  });
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const auto state = event->state;
  uint64_t until = 0;
  {
    const std::lock_guard lock(state->mutex);
    until = state->recorded;
  }
  enqueue(stream, [=] { state->wait(until); });
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const auto state = event->state;
  const std::lock_guard lock(state->mutex);
  return state->happened == state->recorded ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  if (cudaEventQuery(start) != cudaSuccess || cudaEventQuery(end) != cudaSuccess) return cudaErrorNotReady;
  *milliseconds = std::chrono::duration<float, std::milli>(end->state->at - start->state->at).count();
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  event->state->wait(event->state->recorded);
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  thread_local cudaStreamCaptureMode current = cudaStreamCaptureModeGlobal;
  std::swap(current, *mode);
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status = real(stream)->capture != nullptr ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  if (stream == nullptr || stream->capture != nullptr) return cudaErrorInvalidValue;
  stream->capture = new Graph;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = std::exchange(stream->capture, nullptr);
  return *graph == nullptr ? cudaErrorInvalidValue : cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  *executable = new Graph(*graph);
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  for (const auto& node : executable->nodes) enqueue(stream, node);
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete executable;
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}

// -- virtual memory management ---------------------------------------------------------------------------------------

namespace {

CUresult mem_granularity(size_t* bytes, const CUmemAllocationProp*, CUmemAllocationGranularity_flags) {
  *bytes = 1 << 16;
  return CUDA_SUCCESS;
}
CUresult mem_create(CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp* prop,
                    unsigned long long) {
  if (flag("PC_EMULATED_NO_VMM")) return CUDA_ERROR_NOT_SUPPORTED;
  const int fd = make_shared(bytes);
  if (fd < 0) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::lock_guard lock(state().mutex);
  *handle = state().next_handle++;
  state().handles[*handle] = {bytes, fd, prop->location.id, false};
  return CUDA_SUCCESS;
}
CUresult mem_release(CUmemGenericAllocationHandle handle) {
  const std::lock_guard lock(state().mutex);
  const auto found = state().handles.find(handle);
  if (found == state().handles.end()) return CUDA_ERROR_INVALID_VALUE;
  close(found->second.fd);
  state().handles.erase(found);
  return CUDA_SUCCESS;
}
CUresult mem_export(void* into, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType, unsigned long long) {
  const std::lock_guard lock(state().mutex);
  *static_cast<int*>(into) = dup(state().handles.at(handle).fd);
  return CUDA_SUCCESS;
}
CUresult mem_import(CUmemGenericAllocationHandle* handle, void* shared, CUmemAllocationHandleType) {
  int fd = dup(static_cast<int>(reinterpret_cast<intptr_t>(shared)));
  if (fd < 0) return CUDA_ERROR_INVALID_VALUE;
  const off_t bytes = lseek(fd, 0, SEEK_END);
  if (flag("PC_EMULATED_BROKEN_PEER")) {
    close(fd);
    fd = make_shared(static_cast<size_t>(bytes));
  }
  const std::lock_guard lock(state().mutex);
  *handle = state().next_handle++;
  state().handles[*handle] = {static_cast<size_t>(bytes), fd, device, true};
  return CUDA_SUCCESS;
}
CUresult mem_reserve(CUdeviceptr* at, size_t bytes, size_t, CUdeviceptr, unsigned long long) {
  void* found = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  *at = reinterpret_cast<CUdeviceptr>(found);
  return found == MAP_FAILED ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}
CUresult mem_free_address(CUdeviceptr at, size_t bytes) {
  munmap(reinterpret_cast<void*>(at), bytes);
  return CUDA_SUCCESS;
}
CUresult mem_map(CUdeviceptr at, size_t bytes, size_t, CUmemGenericAllocationHandle handle, unsigned long long) {
  const std::lock_guard lock(state().mutex);
  const Allocation& from = state().handles.at(handle);
  void* found = mmap(reinterpret_cast<void*>(at), bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, from.fd, 0);
  if (found == MAP_FAILED) return CUDA_ERROR_INVALID_VALUE;
  state().allocations[reinterpret_cast<char*>(at)] = {bytes, -1, from.device, true};
  return CUDA_SUCCESS;
}
CUresult mem_unmap(CUdeviceptr at, size_t bytes) {
  const std::lock_guard lock(state().mutex);
  state().allocations.erase(reinterpret_cast<char*>(at));
  (void)mmap(reinterpret_cast<void*>(at), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1,
             0);
  return CUDA_SUCCESS;
}
CUresult mem_access(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t) { return CUDA_SUCCESS; }

}  // namespace

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* status) {
  static const std::map<std::string, void*> known{
      {"cuMemGetAllocationGranularity", reinterpret_cast<void*>(mem_granularity)},
      {"cuMemCreate", reinterpret_cast<void*>(mem_create)},
      {"cuMemRelease", reinterpret_cast<void*>(mem_release)},
      {"cuMemExportToShareableHandle", reinterpret_cast<void*>(mem_export)},
      {"cuMemImportFromShareableHandle", reinterpret_cast<void*>(mem_import)},
      {"cuMemAddressReserve", reinterpret_cast<void*>(mem_reserve)},
      {"cuMemAddressFree", reinterpret_cast<void*>(mem_free_address)},
      {"cuMemMap", reinterpret_cast<void*>(mem_map)},
      {"cuMemUnmap", reinterpret_cast<void*>(mem_unmap)},
      {"cuMemSetAccess", reinterpret_cast<void*>(mem_access)},
  };
  const auto found = known.find(symbol);
  *function = found == known.end() ? nullptr : found->second;
  *status = found == known.end() ? cudaDriverEntryPointSymbolNotFound : cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
