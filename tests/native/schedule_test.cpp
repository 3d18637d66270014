// Step tables: what the constructor accepts and refuses; and the positions of a buffer's chunks.
#include "schedule/schedule.h"

#include "base/status.h"
#include "check.h"

namespace pc::test {
namespace {

// Rank 0 of two: copy in, then the sum of both; one exit wait and one reader.
// clang-format off
std::vector<int32_t> sound_table() {
  return {kTableVersion, 2, 0, 1, 2, 1, 2, 1, 1, 0, 1,  // version size rank chunks stride cells steps exits readers flags depth
          1, 2,                                         // exit wait
          1, 2,                                         // reader
          0, 2, 0, 1, 1, 1, 0,                          // chunk flags waits sources targets consumers lag
          0, -1, 1, 0, 0, 1,                            // source; target; consumer
          0, 3, 1, 2, 1, 1, 0,                          //
          1, 1, 0, -1, 1, 1, 0, 1, 0, -2, 1};           // wait; sources; target; consumer
}
// clang-format on

std::vector<int32_t> with(size_t word, int32_t value) {
  auto table = sound_table();
  table.at(word) = value;
  return table;
}

PC_TEST(schedule_refuses_tables_of_another_length) {
  const auto table = sound_table();
  PC_CHECK(Schedule(table).view().steps() == 2, "the table itself is accepted");
  for (size_t length = 0; length < table.size(); ++length)
    PC_CHECK_THROWS(InvalidArgument,
                    Schedule(std::vector<int32_t>(table.begin(), table.begin() + static_cast<int64_t>(length))),
                    length);
  auto longer = table;
  longer.push_back(0);
  PC_CHECK_THROWS(InvalidArgument, Schedule{longer}, "one word too many");
}

PC_TEST(schedule_refuses_what_is_out_of_range) {
  struct Row {
    const char* what;
    size_t word;
    std::vector<int32_t> values;
  };
  const Row rows[] = {
      {"version", 0, {0, kTableVersion + 1}},
      {"size", 1, {0, -1, 1}},
      {"rank", 2, {-1, 2}},
      {"chunks", 3, {0, -1}},
      {"stride", 4, {0, -1, 1}},
      {"cells", 5, {-1, 0}},
      {"steps", 6, {-1, 1, 3}},
      {"exit waits", 7, {-1, 0, 2}},
      {"readers", 8, {-1, 0, 2}},
      {"depth", 10, {-1, 0}},
      {"lag", 21, {-1, 1}},
      {"exit peer", 11, {-1, 2}},
      {"exit count", 12, {-1, 3}},
      {"reader's peer", 13, {-1, 2}},
      {"reader's count", 14, {-1, 3}},
      {"chunk", 15, {-1, 1}},
      {"waits of a step", 17, {-1, 1}},
      {"sources of a step", 18, {-1, 0, 2}},
      {"targets of a step", 19, {-1, 0, 2}},
      {"consumers of a step", 20, {-1, 0, 2}},
      {"source's rank", 22, {-1, 2}},
      {"source's place", 23, {-3, 1}},
      {"target's rank", 25, {-1, 2}},
      {"target's place", 26, {-3, 1}},
      {"consumer", 27, {-1, 0, 2}},
      {"peer", 35, {-1, 2}},
      {"count", 36, {-1, 3}},
  };
  for (const Row& row : rows)
    for (const int32_t value : row.values)
      PC_CHECK_THROWS(InvalidArgument, Schedule(with(row.word, value)), row.what, " ", value);
}

// A huge number anywhere is refused or harmless (flags); it is never used as an index and never overflows.
PC_TEST(schedule_survives_huge_numbers) {
  const auto harmless = [](size_t word) {
    return word == 3 || word == 4 || word == 5 || word == 9 || word == 16 || word == 24 || word == 29 || word == 39 ||
           word == 42;
  };
  for (size_t word = 0; word < sound_table().size(); ++word) {
    for (const int32_t huge : {INT32_MAX, INT32_MIN, 0x40000000, 0x20000000, -0x40000000}) {
      if (harmless(word)) continue;
      PC_CHECK_THROWS(InvalidArgument, Schedule(with(word, huge)), "word ", word, " = ", huge);
    }
  }
  auto wrapping = sound_table();  // two counts whose doubles cancel in 32 bits
  wrapping[17] = wrapping[19] = 0x40000000;
  PC_CHECK_THROWS(InvalidArgument, Schedule{wrapping}, "waits and targets");
}

PC_TEST(layout_splits_evenly_at_aligned_cuts) {
  for (const int64_t count : {0, 1, 7, 16, 100, 1000, 1 << 20, (1 << 20) + 3}) {
    for (const int32_t chunks : {1, 2, 3, 5, 8, 17}) {
      for (const int64_t align : {1, 16, 64}) {
        const Layout layout = Layout::split(count, chunks, align);
        int64_t covered = 0, longest = 0;
        for (int32_t c = 0; c < chunks; ++c) {
          PC_CHECK(layout.length[c] >= 0, "chunk ", c, " of ", count);
          if (layout.length[c] > 0)
            PC_CHECK(layout.input_offset[c] == covered && covered % align == 0, "chunk ", c, " of ", count, "/",
                     chunks);
          covered += layout.length[c];
          longest = std::max(longest, layout.length[c]);
        }
        PC_CHECK(covered == count && layout.longest == longest, count, " in ", chunks, " chunks");
        PC_CHECK(longest <= (count + chunks - 1) / chunks + align, count, " in ", chunks, ": the longest has ",
                 longest);
        PC_CHECK(layout.input_offset == layout.output_offset, count);
      }
    }
  }
}

PC_TEST(layout_knows_its_longest_block) {
  PC_CHECK(Layout::blocks({3, 0, 5, 1}, true, false).longest == 5, "blocks");
  PC_CHECK(Layout::matrix({1, 2, 3, 4, 0, 6, 7, 8, 9}, 3).longest == 9, "matrix");
}

}  // namespace
}  // namespace pc::test
