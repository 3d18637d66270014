// Device memory with one owner.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/cuda/deferred_free.h"
#include "base/cuda/device.h"

namespace pc::cuda {

// Zeroed; freed with its owner, or later if kernels that wait for peers are in flight.
class DeviceBytes {
 public:
  DeviceBytes() = default;
  DeviceBytes(int device, size_t bytes) : device_(device), bytes_(std::max<size_t>(bytes, 16)) {
    const OnDevice on(device);
    check(cudaMalloc(reinterpret_cast<void**>(&data_), bytes_), "cudaMalloc");
    OwnStream().clear(data_, bytes_);
  }
  DeviceBytes(DeviceBytes&& other) noexcept { *this = std::move(other); }
  DeviceBytes& operator=(DeviceBytes&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(bytes_, other.bytes_);
    std::swap(data_, other.data_);
    return *this;
  }
  ~DeviceBytes() {
    if (data_ == nullptr) return;
    free_when_idle(device_, bytes_, [device = device_, data = data_] {
      const QuietlyOn on(device);
      (void)cudaFree(data);  // at exit there may be nothing to free
    });
  }
  char* data() const { return data_; }

 private:
  int device_ = 0;
  size_t bytes_ = 0;
  char* data_ = nullptr;
};

}  // namespace pc::cuda
