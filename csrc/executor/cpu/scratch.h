// The scratch memory of a team's ranks: the tiles of its calls use slots of it in turn.
#pragma once

#include <cstdint>
#include <vector>

#include "executor/scratch_ring.h"

namespace pc {

class Scratch {
 public:
  // `bytes`: of each rank, the same on all.
  Scratch(int64_t bytes, int32_t size)
      : of_(static_cast<size_t>(size)),
        ring_(bytes),
        readers_(size_t{ring_.segments()} * of_.size()),
        size_(of_.size()),
        bytes_(bytes) {}

  void place(int32_t rank, char* memory) { of_[static_cast<size_t>(rank)] = memory; }  // of a rank of this host
  int64_t bytes() const { return bytes_; }
  char* at(int32_t rank, uint32_t segment) const { return of_[static_cast<size_t>(rank)] + ring_.offset(segment); }
  // For each peer, the counter that it reaches when it has read this rank's segment of scratch; 0: it has.  For one on
  // another host, the number of messages sent to it up to the last from that segment.
  uint64_t* readers_of(uint32_t segment) { return &readers_[segment * size_]; }
  // The first slot of a call whose tiles use slots of so many segments.
  uint32_t take(uint32_t width, uint32_t tiles) {
    const uint32_t slot = ScratchRing::align(position_, width);
    if (tiles > 0) position_ = slot + tiles * width;
    return slot;
  }

 private:
  std::vector<char*> of_;  // by rank; null on other hosts
  ScratchRing ring_;
  std::vector<uint64_t> readers_;  // see readers_of()
  size_t size_;
  int64_t bytes_;
  uint32_t position_ = 0;  // in the ring, of the next tile
};

}  // namespace pc
