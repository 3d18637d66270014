// How a rank writes the cells of its scratch that peers read: with ordinary stores, or past the caches.
#pragma once

#include <chrono>
#include <cstdint>

namespace pc {

// Ordinary stores are best where the ranks' cores share a cache.  Where they do not, each line is fetched from the peer's
// cache first (Zen 4, where a line changes hands in 0.5 us: 1 MiB in 430 us), and stores past the caches are ten times
// faster (45 us; where it takes 0.1 us they are half as fast: 66 us, not 34).  So ordinary stores are timed, and after
// slow ones the next cells are streamed: a rank may move to another core at any time.
class CellWrites {
 public:
  static constexpr int64_t kLeast = 16 << 10;  // bytes; less is not streamed, nor timed

  bool stream() { return streamed_ > 0 && streamed_-- > 0; }
  void record(int64_t bytes, std::chrono::nanoseconds time) {
    if (time.count() * kLine > kSlow * bytes) streamed_ = kCells;
  }

 private:
  static constexpr int64_t kLine = 64, kSlow = 12;  // nanoseconds for a line
  static constexpr int kCells = 64;
  int streamed_ = 0;  // cells left
};

}  // namespace pc
