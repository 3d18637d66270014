// Everything about a call that does not change from one to the next: computed once per signature.
#pragma once

#include <memory>

#include "base/environment.h"
#include "dtype/kernels.h"
#include "executor/control.h"
#include "schedule/schedule.h"

namespace pc {

// Bytes of a tile.  The ranks of a communicator must agree: it decides how many there are.
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
  int64_t tile_elements = 1;
  int64_t tiles = 1;
  bool streams = false;       // the output is larger than the caches and not read again within the call

  bool windows() const { return fingerprint.placement != 0; }

  // Fills digest, element and the tile counts from the other fields.  `capacity`: scratch bytes of a rank.
  void finish(int64_t capacity, TileBytes tile = {});
  // Throws InvalidArgument where the schedule does what the call's arrays or its operator do not allow: then nothing
  // that the executor does for it touches memory that is not the call's.  `reduces`: the collective has an operator.
  void check(bool reduces) const;
  void combine(const Block& block) const;
};

}  // namespace pc
