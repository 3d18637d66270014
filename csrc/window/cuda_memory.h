// Symmetric memory on GPUs: our allocations, mapped by the peers' processes.  There are two methods, one file each; all
// ranks together decide which one a communicator uses (pycollective/comm/cuda/paths.py).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace pc::cuda {

// Zeroed device memory, or a mapping of a peer's.  Freed or unmapped with its last owner.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  uintptr_t address() const { return address_; }
  size_t bytes() const { return bytes_; }
  int device() const { return device_; }

 protected:
  DeviceMemory(int device, size_t bytes) : device_(device), bytes_(bytes) {}
  int device_;
  size_t bytes_;
  uintptr_t address_ = 0;
};

// cuda_ipc.cpp: plain cudaMalloc memory, shared by a 64-byte handle.
std::shared_ptr<DeviceMemory> allocate_plain(int device, size_t bytes);
std::string ipc_handle(const DeviceMemory& memory);
std::shared_ptr<DeviceMemory> open_ipc(int device, const std::string& handle, size_t bytes);

// cuda_vmm.cpp: memory from the driver's virtual memory management, shared by a file descriptor.
std::shared_ptr<DeviceMemory> allocate_vmm(int device, size_t bytes);
int export_vmm(const DeviceMemory& memory);  // the caller closes it
std::shared_ptr<DeviceMemory> import_vmm(int device, int descriptor, size_t bytes);

}  // namespace pc::cuda
