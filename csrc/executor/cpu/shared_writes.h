// How a rank copies to memory whose lines peers have read, cells of scratch and the engine's buffer: with ordinary
// stores, or past the caches.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

namespace pc {

// Ordinary stores are best where the ranks' cores share a cache.  Where they do not, each line is fetched from the
// peer's cache first.  1 MiB from rank to rank through cells, in us:
//                                                     ordinary  past the caches
//   Zen 5, a line changes hands in 0.05 us (1 ns a line)    17               45
//   Zen 5, in 0.25 us (7 ns)                               120               36
//   Zen 4, in 0.1 us (2 to 5 ns; writing only)        34 to 74         37 to 66
//   Zen 4, in 0.5 us (26 ns; writing only)                 430               45
//   Zen 3 (3 to 8 ns, streamed 5 to 7; allreduce)     82 to 125       175 to 190
//   Zen 3 (13 to 17 ns, streamed 3 to 6; allreduce)        360              160
// So both ways are timed: after ordinary stores that were slow, and much slower than streaming was, the next writes are
// streamed, since a rank may move to another core at any time.  (rep movsb is as fast as streaming on Zen 5; on Zen 4
// it fetches the lines, too.)
class SharedWrites {
 public:
  static constexpr int64_t kLeast = 16 << 10;  // bytes; less is always stored ordinarily, and not timed
  static constexpr int64_t kSlow = 6;  // nanoseconds for a line; faster stores are ordinary, whatever streaming takes
  static constexpr int64_t kSlowTwo = 8;  // the same if the rank's own output is written, too
  static constexpr int64_t kSlowFromMemory = 10;  // the same if the source is not in the caches

  bool stream() {
    const int left = streamed_.load(std::memory_order_relaxed);
    if (left > 0) streamed_.store(left - 1, std::memory_order_relaxed);
    return left > 0;
  }
  // How long a write took.  One slow one may have been interrupted; two in a row are a reason to stream.
  void record(int64_t bytes, std::chrono::nanoseconds time, bool streamed, int64_t slow_line = kSlow) {
    const double cost = static_cast<double>(time.count() * kLine) / static_cast<double>(slow_line * bytes);
    const double streaming = streaming_.load(std::memory_order_relaxed);
    if (streamed) {  // the least of late: a write may have been interrupted
      streaming_.store(streaming == 0 ? cost : std::min(cost, streaming * kForgets), std::memory_order_relaxed);
      return;
    }
    const bool slow = cost > 1 && cost > kGain * streaming;
    if (slow && was_slow_.load(std::memory_order_relaxed)) streamed_.store(kWrites, std::memory_order_relaxed);
    was_slow_.store(slow, std::memory_order_relaxed);
  }

 private:
  static constexpr int64_t kLine = 64;
  static constexpr int kWrites = 64;
  static constexpr double kGain = 2;  // what is streamed, peers read from memory
  static constexpr double kForgets = 1.05;
  // Atomic because the engine packs while another thread makes a call.
  std::atomic<int> streamed_{0};  // writes left
  std::atomic<bool> was_slow_{false};
  std::atomic<double> streaming_{0};  // the time of streamed writes, in units of slow ones; 0: unknown
};

}  // namespace pc
