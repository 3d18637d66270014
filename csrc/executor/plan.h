// The part of a call that is constant between calls: computed once per signature.
#pragma once

#include <memory>

#include "base/environment.h"
#include "dtype/kernels.h"
#include "executor/control.h"
#include "executor/scratch_ring.h"
#include "schedule/schedule.h"

namespace pc {

// Tile sizes in bytes.  The ranks of a communicator must agree: they determine the number of tiles.
struct TileBytes {
  double windows = environment().tile_bytes;
  double staged = environment().staged_tile_bytes;
};

struct Plan {
  std::shared_ptr<const Schedule> schedule;
  Layout layout;
  Fingerprint fingerprint{};
  uint64_t digest = 0;
  Kernel kernel;
  Scaling scaling;
  CustomFunction custom = nullptr;
  size_t element = 1;         // bytes
  double chosen_tile = 0;     // bytes, measured to be best; 0: the usual
  int64_t tile_elements = 1;
  int64_t tiles = 1;
  uint32_t slot_segments = 1;  // of the scratch ring, for a tile's cells
  uint32_t slot_turn = 1;      // segments in which such slots take turns
  int64_t near_cell = 0;       // bytes of a cell, if CPU ranks have all of them in RankBlock::near_cells
  bool ahead = false;         // ranks may return before those have entered the call that need something of them
  bool streams = false;       // the output is larger than the caches and not read again within the call

  bool windows() const { return fingerprint.placement != 0; }

  // Fills digest, element and the tile counts from the other fields.  `capacity`: a rank's scratch in bytes.
  void finish(int64_t capacity, TileBytes tile = {});
  // Throws InvalidArgument if the schedule does not fit the call's arrays or operator; otherwise the executor touches
  // only the call's own memory.  `reduces`: the collective has an operator.
  void check(bool reduces) const;
  void combine(const Block& block) const;

 private:
  double staged_tile(double most) const;
  double tile_between_hosts(double most) const;
};

}  // namespace pc
