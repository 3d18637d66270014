#include <algorithm>

#include "base/checked.h"
#include "base/status.h"
#include "schedule/schedule.h"

namespace pc {
namespace {

void require(bool condition) {
  if (!condition) throw InvalidArgument("malformed schedule table");
}

bool is_rank(const ScheduleView& v, int32_t rank) { return rank >= 0 && rank < v.size(); }

void check_wait(const ScheduleView& v, Wait wait) {
  require(is_rank(v, wait.peer) && wait.count >= 0 && wait.count <= int64_t{v.stride()} * v.depth());
}

constexpr int32_t kMostDepth = 1 << 20;
constexpr size_t kMostChunks = 1 << 22;  // an alltoall of 2048 ranks

void check_chunks(int64_t chunks) {
  if (chunks < 1 || chunks > static_cast<int64_t>(kMostChunks))
    throw InvalidArgument("a layout has 1 to " + std::to_string(kMostChunks) + " chunks, not " +
                          std::to_string(chunks));
}

// All offsets are sums of some of these, so at most the sum of all.
void check_counts(const std::vector<int64_t>& counts) {
  check_chunks(static_cast<int64_t>(std::min(counts.size(), kMostChunks + 1)));
  int64_t sum = 0;
  for (const int64_t count : counts) {
    if (count < 0) throw InvalidArgument("counts: " + std::to_string(count) + " is negative");
    sum = checked_add(sum, count, "the sum of counts");
  }
}

}  // namespace

Schedule::Schedule(std::vector<int32_t> table) : table_(std::move(table)) {
  const auto total = static_cast<int64_t>(table_.size());
  require(total >= kHeaderWords && table_[0] == kTableVersion);
  const ScheduleView v = view();
  require(v.size() >= 1 && v.size() < (1 << 20) && v.rank() >= 0 && v.rank() < v.size() && v.chunks() >= 1 &&
          v.cells() >= 0 && v.stride() >= 1 && v.depth() >= 1 && v.depth() <= kMostDepth);
  require(v.steps() >= 0 && v.steps() <= v.stride() && v.exit_waits() >= 0 && v.readers() >= 0);
  require(kHeaderWords + 2 * (int64_t{v.exit_waits()} + v.readers()) <= total);
  for (int32_t i = 0; i < v.exit_waits(); ++i) check_wait(v, v.exit_wait(i));
  for (int32_t i = 0; i < v.readers(); ++i) check_wait(v, v.reader(i));
  Step step = v.first();
  for (int32_t i = 0; i < v.steps(); ++i, step = step.next()) {
    require(step.words + kStepWords <= table_.data() + total);
    require(step.waits() >= 0 && step.waits() <= v.size());
    require(step.sources() >= 1 && step.sources() <= kMostOperands);
    require(step.targets() >= 1 && step.targets() <= kMostOperands);
    require(step.consumers() >= 0 && step.consumers() < v.size() && step.consumed() == (step.consumers() > 0));
    require((step.words[1] & ~(2 * step_early - 1)) == 0 && step.lag() >= 0 && step.lag() < v.depth());
    require(step.next().words <= table_.data() + total);
    check_step(step);
    if (step.receives() && step.early()) early_receives_.push_back(step);
  }
  require(step.words == table_.data() + total);
}

void Schedule::check_step(const Step& step) {
  const ScheduleView v = view();
  const auto is_place = [&](int32_t rank, int32_t place) {
    uses_input_ |= rank == v.rank() && place == kPlaceInput;
    uses_output_ |= rank == v.rank() && place == kPlaceOutput;
    return is_rank(v, rank) && place >= kPlaceOutput && place < v.cells();
  };
  require(step.chunk() >= 0 && step.chunk() < v.chunks());
  for (int32_t w = 0; w < step.waits(); ++w) check_wait(v, step.wait(w));
  for (int32_t c = 0; c < step.consumers(); ++c) require(is_rank(v, step.consumer(c)) && step.consumer(c) != v.rank());
  if (step.sends() || step.receives()) check_message(step);
  if (!step.receives())
    for (int32_t s = 0; s < step.sources(); ++s) require(is_place(step.source(s).rank, step.source(s).place));
  if (!step.sends())
    for (int32_t t = 0; t < step.targets(); ++t)
      require(is_place(step.target(t).rank, step.target(t).place) && step.target(t).place != kPlaceInput);
}

void Schedule::check_message(const Step& step) const {
  const ScheduleView v = view();
  const Source from = step.source(0);
  require(step.sends() != step.receives() && step.sources() == 1 && !step.weighted());
  if (step.sends()) {
    require(from.rank == v.rank() && !step.early());
    for (int32_t t = 0; t < step.targets(); ++t)
      require(is_rank(v, step.target(t).rank) && step.target(t).rank != v.rank());
  } else {
    require(step.targets() == 1 && step.target(0).rank == v.rank() && is_rank(v, from.rank) && from.rank != v.rank());
    require(step.waits() > 0 && step.wait(0).peer == from.rank && step.wait(0).count == from.place && from.place > 0);
  }
}

Layout Layout::split(int64_t count, int32_t chunks, int64_t align) {
  check_chunks(chunks);
  if (count < 0 || align < 1)
    throw InvalidArgument("a layout of " + std::to_string(count) + " elements, cut at multiples of " +
                          std::to_string(align));
  Layout layout;
  const int64_t even = checked_add<int64_t>(count, chunks - 1, "elements") / chunks;
  const int64_t piece = checked_mul(checked_add(even, align - 1, "elements of a chunk") / align, align, "elements");
  checked_mul<int64_t>(piece, chunks, "elements of all chunks");
  for (int32_t c = 0; c < chunks; ++c) {
    const int64_t begin = std::min(count, c * piece);
    layout.length.push_back(std::min(count - begin, piece));
    layout.input_offset.push_back(begin);
  }
  layout.output_offset = layout.input_offset;
  layout.longest = *std::max_element(layout.length.begin(), layout.length.end());
  return layout;
}

Layout Layout::blocks(const std::vector<int64_t>& counts, bool packed_input, bool packed_output) {
  check_counts(counts);
  Layout layout;
  if (packed_input) layout.input = Places::own;
  if (packed_output) layout.output = Places::own;
  layout.length = counts;
  int64_t begin = 0;
  for (const int64_t count : counts) {
    layout.input_offset.push_back(packed_input ? 0 : begin);
    layout.output_offset.push_back(packed_output ? 0 : begin);
    begin += count;
  }
  layout.longest = *std::max_element(counts.begin(), counts.end());
  return layout;
}

Layout Layout::matrix(const std::vector<int64_t>& counts, int32_t n) {
  check_counts(counts);
  if (n < 1 || static_cast<uint64_t>(n) * static_cast<uint64_t>(n) != counts.size())
    throw InvalidArgument("counts: " + std::to_string(counts.size()) + " numbers are not one for each pair of " +
                          std::to_string(n) + " ranks");
  Layout layout;
  layout.input = Places::sent;
  layout.output = Places::received;
  layout.ranks = n;
  layout.length = counts;
  layout.input_offset.assign(counts.size(), 0);
  layout.output_offset.assign(counts.size(), 0);
  for (int32_t s = 0; s < n; ++s) {
    for (int32_t d = 0; d < n; ++d) {
      if (d + 1 < n) layout.input_offset[s * n + d + 1] = layout.input_offset[s * n + d] + counts[s * n + d];
      if (s + 1 < n) layout.output_offset[(s + 1) * n + d] = layout.output_offset[s * n + d] + counts[s * n + d];
    }
  }
  layout.longest = *std::max_element(counts.begin(), counts.end());
  return layout;
}

}  // namespace pc
