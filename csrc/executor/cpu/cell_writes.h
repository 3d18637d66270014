// How a rank writes the cells of its scratch that peers read: with ordinary stores, or past the caches.
#pragma once

#include <chrono>
#include <cstdint>

namespace pc {

// Ordinary stores are best where the ranks' cores share a cache.  Where they do not, each line is fetched from the peer's
// cache first.  1 MiB from rank to rank through cells, in us:
//                                                     ordinary  past the caches
//   Zen 5, a line changes hands in 0.05 us (1 ns a line)    17               45
//   Zen 5, in 0.25 us (7 ns)                               120               36
//   Zen 4, in 0.1 us (2 ns; writing only)                   34               66
//   Zen 4, in 0.5 us (26 ns; writing only)                 430               45
// So ordinary stores are timed, and after slow ones the next cells are streamed: a rank may move to another core at any
// time.  (rep movsb is as fast as streaming on Zen 5; on Zen 4 it fetches the lines, too.)
class CellWrites {
 public:
  static constexpr int64_t kLeast = 16 << 10;  // bytes; less is always stored ordinarily, and not timed

  bool stream() { return streamed_ > 0 && streamed_-- > 0; }
  void record(int64_t bytes, std::chrono::nanoseconds time) {
    if (time.count() * kLine > kSlow * bytes) streamed_ = kCells;
  }

 private:
  static constexpr int64_t kLine = 64, kSlow = 5;  // nanoseconds for a line
  static constexpr int kCells = 64;
  int streamed_ = 0;  // cells left
};

}  // namespace pc
