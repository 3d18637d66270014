#include "executor/plan.h"

#include <unistd.h>

#include <algorithm>

#include "base/status.h"

namespace pc {
namespace {

int64_t shared_cache_bytes() {
  const long found = sysconf(_SC_LEVEL3_CACHE_SIZE);
  return found > 0 ? found : int64_t{32} << 20;
}

}  // namespace

void Plan::finish(int64_t capacity, TileBytes tile_bytes) {
  const ScheduleView s = schedule->view();
  const auto bytes = static_cast<int64_t>(element);
  double tile = s.cells() == 0 ? tile_bytes.windows : tile_bytes.staged;
  if (s.cells() > 0) tile = std::min(tile, static_cast<double>(capacity / (2 * s.cells())));
  // A multiple of 64 bytes: no two ranks then write the same cache line of a chunk.
  tile_elements = std::max<int64_t>(1, static_cast<int64_t>(tile) / 64 * 64 / bytes);
  if (s.cells() > 0 && tile_elements * bytes * 2 * s.cells() > capacity)
    throw InvalidArgument("the schedule needs more scratch than PYCOLLECTIVE_SCRATCH gives");
  tiles = std::max<int64_t>(1, (layout.longest + tile_elements - 1) / tile_elements);
  const int64_t touched = 2 * fingerprint.count * bytes * s.size();  // inputs and outputs of all ranks
  streams = touched > shared_cache_bytes() && s.outputs_final();
  digest = fingerprint.digest();
}

void Plan::combine(const Block& block) const {
  const bool scale = scaling.active() && (block.k > 1 || block.complete);
  const bool arithmetic = block.k > 1 || scale || (block.complete && kernel.normalises);
  if (!arithmetic) return copy_block(block, element);
  if (custom != nullptr) return combine_custom(block, element);
  (scale ? kernel.scaled : kernel.plain)(block);
}

}  // namespace pc
