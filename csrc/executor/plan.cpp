#include "executor/plan.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <fstream>

#include "base/checked.h"
#include "base/status.h"

namespace pc {
namespace {

constexpr double kLeastStagedTile = 16 << 10;  // bytes
constexpr int64_t kMostAhead = 4 << 10;        // bytes of scratch of a call that ranks may leave early
// The kernel passes up to 64 KiB of a TCP message on as one packet, headers included.  A message of 64 KiB is two, the
// second of a few hundred bytes, which costs as much as the first.
constexpr double kPacket = 60 << 10;

// Bytes of L3 cache that this core can reach.  The kernel's value takes precedence: on AMD processors the C library
// adds up the caches of the whole socket.
int64_t shared_cache_bytes() {
  static const int64_t bytes = [] {
    int64_t kibibytes = 0;
    std::ifstream("/sys/devices/system/cpu/cpu0/cache/index3/size") >> kibibytes;
    if (kibibytes > 0) return kibibytes << 10;
    const int64_t found = sysconf(_SC_LEVEL3_CACHE_SIZE);
    return found > 0 ? found : int64_t{32} << 20;
  }();
  return bytes;
}

}  // namespace

// Bytes of a staged tile: of a call that would be one tile, peers read one half while the other is written.  Messages
// to other hosts are not divided.
double Plan::staged_tile(double most) const {
  if (schedule->view().spans_hosts()) return most;
  const double half = static_cast<double>(layout.longest) * static_cast<double>(element) / 2;
  return std::min(most, std::max(half, kLeastStagedTile));
}

// Bytes of a tile of messages to other hosts: of whole packets, and tiles as equal as they can then be.
double Plan::tile_between_hosts(double most) const {
  const double bytes = static_cast<double>(layout.longest) * static_cast<double>(element);
  if (most < kPacket || bytes <= kPacket) return most;
  const double largest = std::floor(most / kPacket) * kPacket;
  const double equal = bytes / std::ceil(bytes / largest);
  return std::min(largest, std::ceil(equal / kPacket) * kPacket);
}

void Plan::finish(int64_t capacity, TileBytes tile_bytes) {
  if (chosen_tile > 0) tile_bytes = {chosen_tile, chosen_tile};
  const ScheduleView s = schedule->view();
  const auto bytes = static_cast<int64_t>(element);
  const int64_t cells = s.cells();
  const ScratchRing ring(capacity);
  // A tile is written while those before it, which are in progress, and one more are read.
  const uint32_t slots = std::bit_ceil(static_cast<uint32_t>(s.depth()) + 1);
  const int64_t largest = slots <= ring.segments() ? ring.largest_slot(slots) : 0;
  double tile = cells == 0 ? tile_bytes.windows : tile_bytes.staged;
  if (cells > 0) tile = std::min(staged_tile(tile), static_cast<double>(largest / cells));
  if (s.spans_hosts()) tile = tile_between_hosts(tile);
  // A multiple of 64 bytes, so that no two ranks write the same cache line of a chunk.
  tile_elements = std::max<int64_t>(1, static_cast<int64_t>(tile) / 64 * 64 / bytes);
  const int64_t line = std::max<int64_t>(1, 64 / bytes);
  if (layout.longest < tile_elements)  // cells are a tile apart
    tile_elements = std::min(tile_elements, std::max(line, (layout.longest + line - 1) / line * line));
  if (cells > 0 && tile_elements * bytes > largest / cells)
    throw InvalidArgument("the schedule needs more scratch than PYCOLLECTIVE_SCRATCH gives");
  const int64_t slot = cells * tile_elements * bytes;
  slot_segments = ring.segments_for(slot);
  tiles = std::max<int64_t>(1, checked_add(layout.longest, tile_elements - 1, "elements") / tile_elements);
  ahead = traits(fingerprint.collective).one_way() && !windows() && cells > 0 && tiles == 1 && slot <= kMostAhead &&
          !s.spans_hosts();
  slot_turn = ring.turn_for(slot, ahead ? std::max(slots, kAhead) : slots);
  checked_mul<int64_t>(checked_add<int64_t>(tiles, s.depth(), "tiles"), s.stride(), "steps of a call");
  const int64_t cell = layout.longest * bytes;  // a multiple of the element: aligned
  const bool near = cells > 0 && cell <= static_cast<int64_t>(kNearCells) / cells && slot_turn <= kAhead;
  if (near && tiles == 1 && slots == 2 && !s.spans_hosts()) near_cell = cell;
  const double touched = 2.0 * static_cast<double>(fingerprint.count) * static_cast<double>(bytes) * s.size();
  streams = touched > static_cast<double>(shared_cache_bytes()) && s.outputs_final();  // of all ranks' arrays
  digest = fingerprint.digest();
}

void Plan::check(bool reduces) const {
  const ScheduleView s = schedule->view();
  const auto require = [](bool condition, const char* what) {
    if (!condition) throw InvalidArgument(std::string("the schedule does not fit the call: ") + what);
  };
  const auto check_place = [&](int32_t rank, int32_t place, int32_t chunk) {
    if (place >= 0) return;
    const bool input = place == kPlaceInput;
    require(rank == s.rank() || (fingerprint.placement & (input ? input_shared : output_shared)) != 0,
            "it uses a peer's array that is not in a window");
    require(holds(input ? layout.input : layout.output, rank, chunk, layout.ranks, -1),
            "it uses a block that the rank's array does not hold");
  };
  Step step = s.first();
  for (int32_t i = 0; i < s.steps(); ++i, step = step.next()) {
    require(reduces || step.weighted() || step.sources() == 1, "it reduces, and the collective does not");
    require(!step.weighted() || kernel.weighted != nullptr, "it has weights, and the collective has none");
    if (!step.receives())
      for (int32_t k = 0; k < step.sources(); ++k) check_place(step.source(k).rank, step.source(k).place, step.chunk());
    if (!step.sends())
      for (int32_t m = 0; m < step.targets(); ++m) check_place(step.target(m).rank, step.target(m).place, step.chunk());
  }
}

void Plan::combine(const Block& block) const {
  if (block.weights != nullptr) return kernel.weighted(block);
  const bool scale = scaling.active() && (block.k > 1 || block.complete);
  const bool arithmetic = block.k > 1 || scale || (block.complete && kernel.normalises);
  if (!arithmetic) return copy_block(block, element);
  if (custom != nullptr) return combine_custom(block, element);
  (scale ? kernel.scaled : kernel.plain)(block);
}

}  // namespace pc
