// Freeing device memory waits for the kernels of its device.  One that waits for a peer may take as long as its deadline,
// and a destructor must not.  So what is freed meanwhile is put off: until a moment at which no such kernel is in flight.
#pragma once

#include <cstddef>
#include <functional>

namespace pc::cuda {

constexpr int kAnyDevice = -1;

// Whose kernels may wait for peers.
class WaitsForPeers {
 public:
  explicit WaitsForPeers(int device) : device_(device) {}
  virtual ~WaitsForPeers() = default;
  WaitsForPeers(const WaitsForPeers&) = delete;
  int device() const { return device_; }
  virtual bool idle() const = 0;  // none of its kernels is in flight; does not block

 private:
  int device_;
};

void add(const WaitsForPeers& who);
void remove(const WaitsForPeers& who);
// Its kernels did not end: from now on nothing is freed on this device.
void give_up_on(int device);

// Whether no kernel that may wait for a peer is in flight on the device.
bool idle(int device);
// Frees now or later; never throws.  `bytes`: of the memory that this holds back.
void free_when_idle(int device, size_t bytes, std::function<void()> free) noexcept;
// Frees what was put off, if the device is idle.  Where that is much memory, waits until it is: before an allocation.
void free_deferred(int device);

}  // namespace pc::cuda
