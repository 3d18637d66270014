// How long a kernel waits, and the record that it leaves for the host when it gives up.
#pragma once

#include "executor/cuda/kernels/arguments.h"
#include "executor/cuda/kernels/device.h"

namespace pc::cuda {

// Gives up a wait whose deadline has passed or when the host requests it.
class Patience {
 public:
  PC_FN Patience(HostWords* host, uint32_t* claimed, uint64_t timeout_ns)
      : host_(host), claimed_(claimed), timeout_(timeout_ns) {}

  // Whether to keep waiting; otherwise `fault` is what to report.
  PC_FN bool keeps_waiting(DeviceFault& fault) {
    if (++spins_ % kSpins != 0) {
      if (spins_ > kEager) pause();
      return true;
    }
    if (load_relaxed(&host_->abort) != 0) {
      fault = DeviceFault::aborted;
      return false;
    }
    const uint64_t now = clock_ns();
    if (began_ == 0) began_ = now;
    fault = DeviceFault::timeout;
    return now - began_ < timeout_;
  }

  PC_FN void report(DeviceFault fault, const FaultRecord& what) const {
    if (!claim(claimed_)) return;
    host_->record = what;
    store_flag(reinterpret_cast<uint64_t*>(&host_->fault), static_cast<uint64_t>(fault), false);
  }

 private:
  static constexpr uint32_t kEager = 64;   // polls without a pause
  static constexpr uint32_t kSpins = 256;  // polls between checks of the clock and of the host's word
  HostWords* host_;
  uint32_t* claimed_;
  uint64_t timeout_;
  uint64_t began_ = 0;
  uint32_t spins_ = 0;
};

}  // namespace pc::cuda
