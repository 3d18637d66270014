// Copies and sums at every alignment of their arrays.
#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "check.h"
#include "instruction_sets.h"

namespace pc::test {
namespace {

using Bytes = std::vector<unsigned char>;

// Whether memory that was filled with 0xa5 has got these bytes at a place, and no others.
bool holds_only(const Bytes& memory, size_t at, const void* expected, size_t bytes) {
  Bytes whole(memory.size(), 0xa5);
  std::memcpy(whole.data() + at, expected, bytes);
  return memory == whole;
}

// At every pair of alignments, and up to the end of a page; 128 is two of the widest registers, the smallest size
// copied.
PC_TEST(copies_of_every_alignment) {
  std::mt19937_64 random(5);
  Bytes given(3 * 4096), into(3 * 4096);
  for (unsigned char& byte : given) byte = static_cast<unsigned char>(random());
  const auto check = [&](const InstructionSet& set, size_t from, size_t to, size_t bytes) {
    std::fill(into.begin(), into.end(), 0xa5);
    set.copy(into.data() + to, given.data() + from, bytes);
    PC_CHECK(holds_only(into, to, given.data() + from, bytes), set.name, " from ", from, " to ", to, " bytes ", bytes);
  };
  for (const InstructionSet& set : instruction_sets()) {
    for (size_t from = 0; from < 64; ++from)
      for (size_t to = 0; to < 64; ++to)
        for (const size_t bytes : {size_t{128}, size_t{129}, 200 + from, 511 + to}) check(set, from, to, bytes);
    for (size_t page = 0; page < 4096; page += 61) {
      check(set, 100, page, 4096 + page % 7);
      check(set, page, 4096 - page, 2049);
    }
  }
}

// Large enough that the first target is aligned and that the order of the elements depends on the alignments.
PC_TEST(sums_of_every_alignment) {
  constexpr size_t kPageBytes = 4096, kMost = 2 * kPageBytes;
  std::mt19937_64 random(6);
  std::vector<Bytes> given(2), into(2, Bytes(kMost + kPageBytes));
  for (auto& memory : given)
    for (size_t i = 0; i < kMost + kPageBytes; ++i) memory.push_back(static_cast<unsigned char>(random()));
  const auto check = [&](const InstructionSet& set, Dtype dtype, size_t first, size_t second, size_t to, size_t count) {
    const size_t bytes = count * size_of(dtype);
    const void* sources[] = {given[0].data() + first, given[1].data() + second};
    void* targets[] = {into[0].data() + to, into[1].data() + first};
    const bool initial[] = {true, true}, streamed[] = {false, (to & 1) != 0};
    const Scaling none;
    for (auto& memory : into) std::fill(memory.begin(), memory.end(), 0xa5);
    set.kernel_for(dtype, Operator::sum)
        .plain({sources, initial, targets, 2, 2, count, true, &none, nullptr, second % 3 == 0 ? streamed : nullptr});
    Bytes expected(bytes);
    for (size_t i = 0; i < bytes; i += size_of(dtype)) {
      uint32_t a = 0, b = 0;
      std::memcpy(&a, given[0].data() + first + i, size_of(dtype));
      std::memcpy(&b, given[1].data() + second + i, size_of(dtype));
      a += b;
      std::memcpy(expected.data() + i, &a, size_of(dtype));
    }
    PC_CHECK(holds_only(into[0], to, expected.data(), bytes) && holds_only(into[1], first, expected.data(), bytes),
             set.name, " ", name_of(dtype), " from ", first, " and ", second, " to ", to, ", elements ", count);
  };
  for (const InstructionSet& set : instruction_sets()) {
    for (size_t at = 0; at < kPageBytes; at += 67) {
      const size_t ahead = (at + 150) % kPageBytes, behind = (at + kPageBytes - 150) % kPageBytes;
      for (const size_t count : {size_t{1024}, size_t{1101}, kMost / 4 - at % 40}) {
        check(set, Dtype::uint32, at, at, ahead, count);
        check(set, Dtype::uint32, at, ahead, ahead, count);
        check(set, Dtype::uint32, at, behind, ahead, count);
        check(set, Dtype::uint8, at, at, ahead, 4 * count - at % 5);
        check(set, Dtype::uint8, at, behind, behind, 4 * count - at % 5);
      }
    }
  }
}

}  // namespace
}  // namespace pc::test
