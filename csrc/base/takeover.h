// When a background thread takes calls over from callers that may be about to wait for them.
//
// A call that is awaited soon is run by the waiting thread: waking another one would cost several times as much as a
// small call.  So a submission wakes the background thread only if it rests, or if callers have lately not waited.
// Otherwise the thread looks by itself, and finds calls that nobody has begun to wait for.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>

namespace pc {

class Takeover {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr auto kGrace = std::chrono::microseconds(50);  // that a caller has to begin to wait
  static constexpr auto kLongestNap = std::chrono::milliseconds(2);  // between two looks of the thread
  static constexpr auto kRestAfter = std::chrono::seconds(1);  // without submissions
  static bool is_ripe(Clock::time_point submitted, Clock::time_point now) { return now - submitted >= kGrace; }

  // Called by submitting threads, under the owner's mutex.  True: wake the background thread.
  bool submit(Clock::time_point now) {
    used_ = now;
    return resting_ || unawaited_.load(std::memory_order_relaxed);
  }
  // A caller begins to wait.
  void wait(Clock::time_point submitted) {
    if (!is_ripe(submitted, Clock::now())) unawaited_.store(false, std::memory_order_relaxed);
  }

  // The background thread, under the owner's mutex.
  void took_over() {
    unawaited_.store(true, std::memory_order_relaxed);
    nap_ = kGrace;
  }
  // How long to sleep until the next look; `pending`: there are calls that nobody runs.  Zero: rest, until woken.
  Clock::duration nap(bool pending, Clock::time_point now) {
    resting_ = !pending && now - used_ >= kRestAfter;
    if (resting_) nap_ = kGrace;
    if (resting_ || pending) return resting_ ? Clock::duration::zero() : Clock::duration(kGrace);
    if (unawaited_.load(std::memory_order_relaxed)) return kLongestNap;  // a submission ends it
    const auto nap = nap_;
    nap_ = std::min<Clock::duration>(2 * nap_, kLongestNap);
    return nap;
  }

 private:
  Clock::time_point used_{};
  Clock::duration nap_ = kGrace;
  bool resting_ = true;
  std::atomic<bool> unawaited_{false};  // the thread has taken a call over, and no caller has waited at once since
};

}  // namespace pc
