// Where things are in the shared segment of a communicator's ranks on one host.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "executor/control.h"

namespace pc {

// Offsets: the control header, a block for each rank, the channels of all ordered pairs of ranks, scratch.
struct SegmentMap {
  explicit SegmentMap(int32_t ranks)
      : blocks(round_up(sizeof(ControlHeader), kPage)),
        pairs(round_up(blocks + ranks * sizeof(RankBlock), kPage)),
        pair_bytes(kPairBlocks + pair_scratch(ranks)),
        scratch(round_up(pairs + pair_bytes * static_cast<size_t>(pairs_of(ranks)), kPage)) {}
  size_t blocks, pairs, pair_bytes, scratch;

  static constexpr size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }
  static constexpr int64_t pairs_of(int64_t ranks) { return ranks * (ranks - 1); }
  // Bytes of scratch of one rank's messages to another.  With this odd number of pages a tile whose size is a power of
  // two fills its segments: see ScratchRing.
  static constexpr int64_t pair_scratch(int32_t ranks) {
    const int64_t share = kPairsScratch / std::max<int64_t>(1, pairs_of(ranks));
    return std::clamp(share, kLeastPairScratch, kMostPairScratch) / (2 * kPage) * (2 * kPage) + kPage;
  }

  static constexpr int64_t kPage = 4096;
  static constexpr int64_t kLeastPairScratch = 64 << 10;  // bytes: two tiles of an eager message
  // With half of it a message of 1 MiB takes twice the time: less of it is read from the sender's cache.
  static constexpr int64_t kMostPairScratch = 2 << 20;
  static constexpr int64_t kPairsScratch = 16 << 20;  // of all pairs, while each has at least the least
  static constexpr size_t kPairBlocks = (2 * sizeof(RankBlock) + 63) / 64 * 64;
};

}  // namespace pc
