// The scratch ring: slots fit the scratch, slots in turn do not overlap, and small ones stay together; and how its cells
// are written.
#include "executor/scratch_ring.h"

#include "check.h"
#include "executor/cpu/shared_writes.h"

namespace pc {
namespace {

constexpr int64_t kCapacities[] = {256, 1000, 4096, 65536, 100000, 1 << 20, (4 << 20) - 64, 4 << 20, 1 << 30};

PC_TEST(ring_fits_the_scratch) {
  for (const int64_t capacity : kCapacities) {
    const ScratchRing ring(capacity);
    PC_CHECK(ring.offset(ring.segments()) <= capacity, "the ring ends within the scratch", capacity);
    PC_CHECK(ring.largest_slot(2) * 2 >= capacity * 3 / 4 - 128 * 64, "little is lost", capacity, ring.largest_slot(2));
    const uint32_t most = ring.segments_for(ring.largest_slot(2));
    PC_CHECK(most * 2 <= ring.segments(), "the largest slot leaves room for another", capacity, most);
  }
}

PC_TEST(ring_takes_turns) {
  for (const int64_t capacity : kCapacities) {
    const ScratchRing ring(capacity);
    for (int64_t bytes = 64; bytes <= ring.largest_slot(2); bytes = bytes * 3 / 2) {
      const uint32_t width = ring.segments_for(bytes), turn = ring.turn_for(bytes, 2);
      PC_CHECK(ring.offset(width) >= bytes, "a slot holds its bytes", capacity, bytes);
      PC_CHECK((width & (width - 1)) == 0 && turn % width == 0 && turn / width >= 2, "slots fill the turn", width,
               turn);
      PC_CHECK(turn <= ring.segments() && ring.segments() % turn == 0, "a turn is within the ring", width, turn);
      for (uint32_t position = 0; position < 2 * ring.segments(); ++position) {
        const uint32_t first = ScratchRing::align(position, width);
        PC_CHECK(first >= position && first < position + width && first % width == 0, "the next slot", position, width);
      }
    }
  }
}

PC_TEST(ring_cells_are_streamed_after_slow_stores) {
  using std::chrono::nanoseconds;
  constexpr int64_t bytes = 64 << 10;  // 1024 lines
  SharedWrites writes;
  PC_CHECK(!writes.stream(), "ordinary stores at first");
  writes.record(bytes, nanoseconds(1024 * 5));
  PC_CHECK(!writes.stream(), "5 ns a line is no reason to change");
  writes.record(bytes, nanoseconds(1024 * 7), SharedWrites::kSlowFromMemory);
  PC_CHECK(!writes.stream(), "nor 7 ns from memory");
  writes.record(bytes, nanoseconds(1024 * 7));
  PC_CHECK(!writes.stream(), "one slow write may have been interrupted");
  writes.record(bytes, nanoseconds(1024 * 7));
  int streamed = 0;
  while (writes.stream() && streamed < 1000) ++streamed;
  PC_CHECK(streamed >= 16 && streamed < 1000, "some writes are streamed, then one is tried again", streamed);
  PC_CHECK(!writes.stream(), "until an ordinary store is slow again");
  writes.record(bytes, nanoseconds(1024 * 7));
  PC_CHECK(writes.stream(), "one is enough while they are slow");
}

}  // namespace
}  // namespace pc
