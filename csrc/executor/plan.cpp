#include "executor/plan.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "base/status.h"

namespace pc {
namespace {

// Bytes of third-level cache that this core can reach.  The kernel's word comes first: on AMD's processors the C
// library adds up the caches of the whole socket.
int64_t read_cache_bytes() {
  int64_t kibibytes = 0;
  std::ifstream("/sys/devices/system/cpu/cpu0/cache/index3/size") >> kibibytes;
  if (kibibytes > 0) return kibibytes << 10;
  const long found = sysconf(_SC_LEVEL3_CACHE_SIZE);
  return found > 0 ? found : int64_t{32} << 20;
}

int64_t shared_cache_bytes() {
  static const int64_t bytes = read_cache_bytes();
  return bytes;
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
