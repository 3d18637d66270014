// Freeing device memory waits for the device's kernels.  A kernel that waits for a peer may run until its deadline, and
// a destructor must not block that long.  Such frees are deferred until no such kernel is in flight.
#pragma once

#include <cstddef>
#include <functional>

namespace pc::cuda {

constexpr int kAnyDevice = -1;

// An owner of kernels that may wait for peers.
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

void add(const WaitsForPeers& owner);
void remove(const WaitsForPeers& owner);
// Its kernels did not end: nothing is freed on this device from now on.
void give_up_on(int device);

// Whether no kernel that may wait for a peer is in flight on the device.
bool idle(int device);
// Frees now or later; never throws.  `bytes`: size of the memory being freed.
void free_when_idle(int device, size_t bytes, std::function<void()> free) noexcept;
// Runs the deferred frees if the device is idle.  If they hold much memory, waits for it; called before allocations.
void free_deferred(int device);

}  // namespace pc::cuda
