#include <algorithm>
#include <cstring>

#include "base/cuda_device.h"
#include "window/cuda_memory.h"

namespace pc::cuda {
namespace {

// CUDA IPC exports whole allocations of cudaMalloc: never a piece of somebody's pool.
class PlainMemory : public DeviceMemory {
 public:
  PlainMemory(int device, size_t bytes) : DeviceMemory(device, std::max<size_t>(bytes, 16)) {
    const OnDevice on(device);
    const CaptureAside aside;
    void* made = nullptr;
    check(cudaMalloc(&made, bytes_), "cudaMalloc of a window");
    address_ = reinterpret_cast<uintptr_t>(made);
    OwnStream().clear(made, bytes_);
  }
  ~PlainMemory() override { (void)cudaFree(reinterpret_cast<void*>(address_)); }
};

class PeersMemory : public DeviceMemory {
 public:
  PeersMemory(int device, const std::string& handle, size_t bytes) : DeviceMemory(device, bytes) {
    cudaIpcMemHandle_t raw;
    if (handle.size() != sizeof raw) throw InvalidArgument("a CUDA IPC handle has 64 bytes");
    std::memcpy(static_cast<void*>(&raw), handle.data(), sizeof raw);
    const OnDevice on(device);
    const CaptureAside aside;
    void* mapped = nullptr;
    check(cudaIpcOpenMemHandle(&mapped, raw, cudaIpcMemLazyEnablePeerAccess), "cudaIpcOpenMemHandle");
    address_ = reinterpret_cast<uintptr_t>(mapped);
  }
  ~PeersMemory() override { (void)cudaIpcCloseMemHandle(reinterpret_cast<void*>(address_)); }
};

}  // namespace

std::shared_ptr<DeviceMemory> allocate_plain(int device, size_t bytes) {
  return std::make_shared<PlainMemory>(device, bytes);
}

std::string ipc_handle(const DeviceMemory& memory) {
  const OnDevice on(memory.device());
  cudaIpcMemHandle_t raw;
  check(cudaIpcGetMemHandle(&raw, reinterpret_cast<void*>(memory.address())), "cudaIpcGetMemHandle");
  return {reinterpret_cast<const char*>(&raw), sizeof raw};
}

std::shared_ptr<DeviceMemory> open_ipc(int device, const std::string& handle, size_t bytes) {
  return std::make_shared<PeersMemory>(device, handle, bytes);
}

}  // namespace pc::cuda
