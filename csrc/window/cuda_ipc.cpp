#include <algorithm>
#include <cstring>

#include "base/cuda/deferred_free.h"
#include "base/cuda/device.h"
#include "window/cuda_memory.h"

namespace pc::cuda {
namespace {

// cudaMalloc cuts small allocations out of blocks of 2 MiB, and IPC shares the whole block, including other allocations
// in it (CUDA C++ Programming Guide, "Interprocess Communication"): ours fill their blocks.
constexpr size_t kBlock = size_t{2} << 20;

class PlainMemory : public DeviceMemory {
 public:
  PlainMemory(int device, size_t bytes) : DeviceMemory(device, bytes) {
    require_no_pending_error();
    free_deferred(device);
    const OnDevice on(device);
    void* made = nullptr;
    check(cudaMalloc(&made, (std::max<size_t>(bytes, 1) + kBlock - 1) / kBlock * kBlock), "cudaMalloc of a window");
    address_ = reinterpret_cast<uintptr_t>(made);
    try {
      OwnStream().clear(made, bytes);
    } catch (...) {
      (void)cudaFree(made);
      throw;
    }
  }
  ~PlainMemory() override {
    free_when_idle(device_, bytes_, [device = device_, at = reinterpret_cast<void*>(address_)] {
      const QuietlyOn on(device);
      (void)cudaFree(at);
    });
  }
};

class PeersMemory : public DeviceMemory {
 public:
  PeersMemory(int device, const std::string& handle, size_t bytes) : DeviceMemory(device, bytes) {
    cudaIpcMemHandle_t raw;
    if (handle.size() != sizeof raw) throw InvalidArgument("a CUDA IPC handle has 64 bytes");
    std::memcpy(static_cast<void*>(&raw), handle.data(), sizeof raw);
    const OnDevice on(device);
    void* mapped = nullptr;
    check(cudaIpcOpenMemHandle(&mapped, raw, cudaIpcMemLazyEnablePeerAccess), "cudaIpcOpenMemHandle");
    address_ = reinterpret_cast<uintptr_t>(mapped);
  }
  ~PeersMemory() override {
    const QuietlyOn on(device_);
    (void)cudaIpcCloseMemHandle(reinterpret_cast<void*>(address_));
  }
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
