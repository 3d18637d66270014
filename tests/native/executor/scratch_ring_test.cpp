// The scratch ring: slots fit the scratch, slots in turn do not overlap, and small ones stay together; and how its
// cells are written.
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
    for (const uint32_t slots : {2u, 4u, 16u}) {
      if (slots > ring.segments()) continue;
      for (int64_t bytes = 64; bytes <= ring.largest_slot(slots); bytes = bytes * 3 / 2) {
        const uint32_t width = ring.segments_for(bytes), turn = ring.turn_for(bytes, slots);
        PC_CHECK(ring.offset(width) >= bytes, "a slot holds its bytes", capacity, bytes);
        PC_CHECK((width & (width - 1)) == 0 && turn % width == 0 && turn / width >= slots, "slots fill the turn", width,
                 turn);
        PC_CHECK(turn <= ring.segments() && ring.segments() % turn == 0, "a turn is within the ring", width, turn);
        for (uint32_t position = 0; position < 2 * ring.segments(); ++position) {
          const uint32_t first = ScratchRing::align(position, width);
          PC_CHECK(first >= position && first < position + width && first % width == 0, "the next slot", position,
                   width);
        }
      }
    }
  }
}

// Writes of 1024 lines.
struct Writer {
  static constexpr int64_t kBytes = 64 << 10;
  SharedWrites writes;
  void stores(int64_t line, int64_t slow_line = SharedWrites::kSlow) {
    writes.record(kBytes, std::chrono::nanoseconds(1024 * line), false, slow_line);
  }
  // Until an ordinary store is due again: how many have been streamed.
  int streams(int64_t line) {
    int count = 0;
    for (; count < 1000 && writes.stream(); ++count) writes.record(kBytes, std::chrono::nanoseconds(1024 * line), true);
    return count;
  }
};

PC_TEST(ring_cells_are_streamed_after_slow_stores) {
  Writer writer;
  PC_CHECK(writer.streams(1) == 0, "ordinary stores at first");
  writer.stores(5);
  PC_CHECK(writer.streams(1) == 0, "5 ns a line is no reason to change");
  writer.stores(7, SharedWrites::kSlowFromMemory);
  PC_CHECK(writer.streams(1) == 0, "nor 7 ns from memory");
  writer.stores(7);
  PC_CHECK(writer.streams(1) == 0, "one slow write may have been interrupted");
  writer.stores(7);
  const int streamed = writer.streams(2);
  PC_CHECK(streamed >= 16 && streamed < 1000, "some writes are streamed, then one is tried again", streamed);
  PC_CHECK(writer.streams(2) == 0, "until an ordinary store is slow again");
  writer.stores(7);
  PC_CHECK(writer.streams(2) == streamed, "one is enough while they are slow");
}

PC_TEST(ring_cells_are_streamed_only_if_that_is_much_faster) {
  Writer writer;
  writer.stores(8);
  writer.stores(8);
  PC_CHECK(writer.streams(5) > 0, "it is tried");
  for (int i = 0; i < 10; ++i) {
    writer.stores(8);
    PC_CHECK(writer.streams(5) == 0, "8 ns against 5 is no reason to stream");
  }
  writer.stores(15);
  writer.stores(15);
  PC_CHECK(writer.streams(3) > 0, "15 ns against 5 is");
  writer.stores(8);  // the ranks are near each other again, and 3 ns are remembered
  writer.stores(8);
  PC_CHECK(writer.streams(5) > 0, "it is tried");
  writer.stores(8);
  writer.stores(8);
  PC_CHECK(writer.streams(5) == 0, "what streaming took earlier is forgotten");
}

}  // namespace
}  // namespace pc
