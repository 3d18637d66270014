// Checks of a call's arrays, wherever they are stored: what one rank can check locally, and which arrays peers may
// access.  Lengths are in elements; the columns of the collectives' table that decide are explained there.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/checked.h"
#include "base/status.h"
#include "dtype/table.h"
#include "schedule/collectives.h"

namespace pc {

struct ArrayView {
  char* data = nullptr;
  int64_t count = 0;
  Dtype dtype = Dtype::count;
  bool writable = false;

  int64_t bytes() const { return count * static_cast<int64_t>(size_of(dtype)); }
  bool overlaps(const ArrayView& other) const {
    return count > 0 && other.count > 0 && data < other.data + other.bytes() && other.data < data + bytes();
  }
};

struct CallArrays {
  ArrayView input, output;
  bool has_input = false, has_output = false;
  int64_t count = 0;  // of the logical buffer
};

// A call from one rank's point of view.
struct CallShape {
  Collective collective;
  int32_t rank, size, root;
  const std::vector<int64_t>& counts;  // elements of each block, if the collective has blocks
};

// The sum of nonnegative counts.
inline int64_t sum_of(const std::vector<int64_t>& counts) {
  int64_t sum = 0;
  for (const int64_t count : counts) sum = checked_add(sum, count, "the sum of counts");
  return sum;
}

// Throws InvalidArgument.
inline void check_counts(const CallShape& call) {
  const Traits& t = traits(call.collective);
  if (!t.in_blocks()) return;
  const auto n = static_cast<size_t>(call.size);
  if (call.counts.size() != (t.split == Split::pairs ? n * n : n) ||
      std::any_of(call.counts.begin(), call.counts.end(), [](int64_t count) { return count < 0; }))
    throw InvalidArgument("counts: one for each of " + std::to_string(n) + " ranks, none negative");
}

enum Placement : uint8_t { input_shared = 1, output_shared = 2, in_place = 4 };
constexpr uint8_t kPlacementsDiffer = 1 << 7;  // of several ranks'

// The required lengths of the rank's input and output.
inline std::pair<int64_t, int64_t> lengths_of(const CallShape& call, int64_t count) {
  const Traits& t = traits(call.collective);
  if (!t.in_blocks()) return {count, count};
  int64_t input = count, output = count;
  if (t.split == Split::pairs) {
    input = output = 0;
    for (int32_t i = 0; i < call.size; ++i) {
      input += call.counts[static_cast<size_t>(int64_t{call.rank} * call.size + i)];
      output += call.counts[static_cast<size_t>(call.rank + int64_t{i} * call.size)];
    }
  }
  if (t.packed_input()) input = call.counts[static_cast<size_t>(call.rank)];
  if (t.packed_output()) output = call.counts[static_cast<size_t>(call.rank)];
  return {input, output};
}

// x and out may share memory only element for element; otherwise the call would read what it has written.
inline void check_overlap(const CallShape& call, const CallArrays& a) {
  if (!a.has_input || !a.has_output || !a.input.overlaps(a.output)) return;
  const Traits& t = traits(call.collective);
  if (t.in_place == InPlace::never && a.input.data == a.output.data)
    throw InvalidArgument(std::string(t.name) + " cannot work in place: out is x");
  int64_t own = 0;  // bytes before the rank's own block
  if (t.split == Split::ranks)
    for (int32_t i = 0; i < call.rank; ++i) own += call.counts[static_cast<size_t>(i)];
  own *= static_cast<int64_t>(size_of(a.input.dtype));
  if (a.input.data + (t.packed_output() ? own : 0) != a.output.data + (t.packed_input() ? own : 0))
    throw InvalidArgument("x and out overlap without being in place");
}

// Throws InvalidArgument or WrongType.
inline void check_arrays(const CallShape& call, const CallArrays& a) {
  const Traits& t = traits(call.collective);
  if (t.rooted && (call.root < 0 || call.root >= call.size))
    throw InvalidArgument("root " + std::to_string(call.root) + " is not a rank of this communicator of " +
                          std::to_string(call.size));
  const bool sends = t.has_input(call.rank, call.root);
  if (sends && !a.has_input) throw WrongType("x is missing");
  if (t.has_output(call.rank, call.root) && t.has_result(call.rank) && !a.has_output) throw WrongType("out is missing");
  if (a.has_output && !a.output.writable) throw InvalidArgument("out is read-only");
  if (a.has_input && a.has_output && a.input.dtype != a.output.dtype)
    throw WrongType(std::string("x is ") + name_of(a.input.dtype) + " but out is " + name_of(a.output.dtype));
  const auto expect = [](const char* what, int64_t has, int64_t needs) {
    if (has != needs)
      throw InvalidArgument(std::string(what) + " has " + std::to_string(has) + " elements; this call needs " +
                            std::to_string(needs));
  };
  const auto [input, output] = lengths_of(call, a.count);
  if (a.has_output) expect("out", a.output.count, output);
  if (t.in_blocks() && !sends) return;  // x is a template, of any length
  if (a.has_input) expect("x", a.input.count, input);
  check_overlap(call, a);
}

// Which arrays peers may access: bits of Placement.  `shared(view)`: whether peers have this memory mapped.
template <class SharedInput, class SharedOutput>
uint8_t placement_of(const Traits& t, const CallArrays& a, SharedInput&& shared_input, SharedOutput&& shared_output) {
  constexpr uint8_t whole = input_shared | output_shared | in_place;
  if (!t.windows) return 0;
  if (t.single_buffer) return shared_output() ? whole : 0;  // out; the call copies the root's x into it
  const bool same = a.has_output && a.input.data == a.output.data && t.in_place == InPlace::windows;
  if (same) return shared_input() ? whole : 0;
  if (a.has_output && a.input.overlaps(a.output)) return 0;
  const uint8_t input = shared_input() ? input_shared : 0;
  return t.output != Places::root && !t.weighted && shared_output() ? input | output_shared : input;
}

}  // namespace pc
