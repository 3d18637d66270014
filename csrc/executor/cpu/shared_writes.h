// How a rank copies to memory whose lines peers have read, cells of scratch and the engine's buffer: with ordinary
// stores, or past the caches.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace pc {

// Ordinary stores are best where the ranks' cores share a cache.  Where they do not, each line is fetched from the peer's
// cache first.  1 MiB from rank to rank through cells, in us:
//                                                     ordinary  past the caches
//   Zen 5, a line changes hands in 0.05 us (1 ns a line)    17               45
//   Zen 5, in 0.25 us (7 ns)                               120               36
//   Zen 4, in 0.1 us (2 to 5 ns; writing only)        34 to 74         37 to 66
//   Zen 4, in 0.5 us (26 ns; writing only)                 430               45
// So ordinary stores are timed, and after slow ones the next writes are streamed: a rank may move to another core at any
// time.  (rep movsb is as fast as streaming on Zen 5; on Zen 4 it fetches the lines, too.)
class SharedWrites {
 public:
  static constexpr int64_t kLeast = 16 << 10;  // bytes; less is always stored ordinarily, and not timed
  static constexpr int64_t kSlow = 6;  // nanoseconds for a line
  static constexpr int64_t kSlowTwo = 8;  // the same if the rank's own output is written, too
  static constexpr int64_t kSlowFromMemory = 10;  // the same if the source is not in the caches

  bool stream() {
    const int left = streamed_.load(std::memory_order_relaxed);
    if (left > 0) streamed_.store(left - 1, std::memory_order_relaxed);
    return left > 0;
  }
  // Of ordinary stores.  One slow write may have been interrupted; two in a row are a reason to stream.
  void record(int64_t bytes, std::chrono::nanoseconds time, int64_t slow_line = kSlow) {
    const bool slow = time.count() * kLine > slow_line * bytes;
    if (slow && was_slow_.load(std::memory_order_relaxed)) streamed_.store(kWrites, std::memory_order_relaxed);
    was_slow_.store(slow, std::memory_order_relaxed);
  }

 private:
  static constexpr int64_t kLine = 64;
  static constexpr int kWrites = 64;
  // Atomic because the engine packs while another thread makes a call.
  std::atomic<int> streamed_{0};  // writes left
  std::atomic<bool> was_slow_{false};
};

}  // namespace pc
