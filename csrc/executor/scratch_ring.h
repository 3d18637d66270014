// A rank's shared scratch as a ring of segments.  A tile's cells occupy as many adjacent segments as they need (its
// slot), the next tile's the segments after them.  More slots are used in turn than the two that would suffice: writing
// a line that is still in the cache of the peer that has read it takes four times as long as writing one that has been
// evicted from there (measured on Zen 4: 1 MiB in 119 us through 256 KiB of scratch, in 34 us through 1 MiB).  More
// than 2 MiB takes longer again (measured on Zen 3: 96 KiB through 4 MiB and through 2 MiB, allreduce 22 and 17 us,
// reduce 14.5 and 9.3), presumably since lines leave the third-level cache, which other programs use too.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace pc {

class ScratchRing {
 public:
  // `capacity`: bytes of one rank's scratch, the same on all ranks.
  explicit ScratchRing(int64_t capacity) {
    while (segments_ > 2 && capacity / segments_ < kLine) segments_ /= 2;
    bytes_ = capacity / segments_ / kLine * kLine;
    // Segments an odd number of lines apart start in different sets of a cache.
    if (bytes_ >= kPage && bytes_ / kLine % 2 == 0) bytes_ -= kLine;
  }

  uint32_t segments() const { return segments_; }
  // Bytes of the largest slot of which the ring has `slots`, a power of two.
  int64_t largest_slot(uint32_t slots) const { return bytes_ * (segments_ / slots); }
  // Segments of a slot of so many bytes, at most largest_slot(): a power of two, so that slots of a size fill the ring.
  uint32_t segments_for(int64_t bytes) const {
    return std::bit_ceil(static_cast<uint32_t>(std::max<int64_t>(1, (bytes + bytes_ - 1) / bytes_)));
  }
  int64_t offset(uint32_t segment) const { return segment * bytes_; }
  // In how many segments, a power of two, slots of so many bytes take turns, at least `slots`: small ones stay in the
  // L1 cache.
  uint32_t turn_for(int64_t bytes, uint32_t slots) const {
    if (bytes <= std::min(kPage, bytes_)) return std::min(slots, segments_);
    const auto turn = std::bit_floor(static_cast<uint32_t>(std::clamp<int64_t>(kTurn / bytes_, 1, segments_)));
    return std::min(segments_, std::max(turn, slots * segments_for(bytes)));
  }
  // The first slot of `width` segments at or after a position; positions grow forever.
  static uint32_t align(uint32_t position, uint32_t width) { return (position + width - 1) & ~(width - 1); }

 private:
  static constexpr int64_t kLine = 64, kPage = 4096;
  static constexpr int64_t kTurn = 2 << 20;
  uint32_t segments_ = 64;  // a power of two
  int64_t bytes_ = 0;
};

}  // namespace pc
