// A compiled schedule of one rank, as plain int32 data, written by pycollective/schedule/compiler/schedule.py
// (Schedule.table) and read by the executor.  Trivially copyable views; nothing here allocates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/target.h"
#include "schedule/collectives.h"

namespace pc {

constexpr int32_t kTableVersion = 4;
constexpr int32_t kPlaceInput = -1;   // the rank's input array
constexpr int32_t kPlaceOutput = -2;  // the rank's output array; places >= 0 are scratch cells

constexpr int32_t kMostOperands = 1024;  // most sources, and most targets, of a step

// The peer's counter has reached `count`, counted from the beginning of the waiting step's tile; 0: it has entered the
// call.  If the peer is on another host: its message sent at that count has arrived.
struct Wait {
  int32_t peer;
  int32_t count;
};
struct Source {
  int32_t rank;
  int32_t place;
  int32_t initial;
};
struct Target {
  int32_t rank;
  int32_t place;
};

enum StepFlag : int32_t {
  step_complete = 1,
  step_consumed = 2,
  step_weighted = 4,
  step_send = 8,    // the source goes to the targets' ranks, on other hosts; their places do not count
  step_recv = 16,   // a message goes to the target; the source is its sender, and the count of its step as a place
  step_early = 32,  // the target may be written as soon as the tile has begun
};

constexpr int32_t kStepWords = 7, kHeaderWords = 11;

// A view of one step inside the table.
struct Step {
  const int32_t* words;
  PC_FN int32_t chunk() const { return words[0]; }
  PC_FN bool complete() const { return (words[1] & step_complete) != 0; }
  PC_FN bool consumed() const { return (words[1] & step_consumed) != 0; }
  PC_FN bool weighted() const { return (words[1] & step_weighted) != 0; }
  PC_FN bool sends() const { return (words[1] & step_send) != 0; }
  PC_FN bool receives() const { return (words[1] & step_recv) != 0; }
  PC_FN bool early() const { return (words[1] & step_early) != 0; }
  PC_FN bool receives_late() const { return (words[1] & (step_recv | step_early)) == step_recv; }
  PC_FN bool is_message() const { return (words[1] & (step_send | step_recv)) != 0; }
  PC_FN int32_t waits() const { return words[2]; }
  PC_FN int32_t sources() const { return words[3]; }
  PC_FN int32_t targets() const { return words[4]; }
  PC_FN int32_t consumers() const { return words[5]; }
  PC_FN int32_t lag() const { return words[6]; }  // tiles that it is behind the newest one
  PC_FN Wait wait(int32_t i) const { return {words[kStepWords + 2 * i], words[kStepWords + 1 + 2 * i]}; }
  PC_FN Source source(int32_t i) const {
    const int32_t* w = words + kStepWords + 2 * waits() + 3 * i;
    return {w[0], w[1], w[2]};
  }
  PC_FN Target target(int32_t i) const {
    const int32_t* w = words + kStepWords + 2 * waits() + 3 * sources() + 2 * i;
    return {w[0], w[1]};
  }
  PC_FN int32_t consumer(int32_t i) const {  // a rank that waits for exactly this step
    return words[kStepWords + 2 * waits() + 3 * sources() + 2 * targets() + i];
  }
  PC_FN double weight(int32_t i) const {  // of a source, in a weighted step
    double value;
    memcpy(&value, end_of_lists() + 2 * i, sizeof value);
    return value;
  }
  PC_FN Step next() const { return {end_of_lists() + (weighted() ? 2 * sources() : 0)}; }

 private:
  PC_FN const int32_t* end_of_lists() const {
    return words + kStepWords + 2 * waits() + 3 * sources() + 2 * targets() + consumers();
  }
};

// A view of one rank's table.
struct ScheduleView {
  const int32_t* words;
  PC_FN int32_t size() const { return words[1]; }
  PC_FN int32_t rank() const { return words[2]; }
  PC_FN int32_t chunks() const { return words[3]; }
  PC_FN int32_t stride() const { return words[4]; }
  PC_FN int32_t cells() const { return words[5]; }
  PC_FN int32_t steps() const { return words[6]; }
  PC_FN int32_t exit_waits() const { return words[7]; }
  PC_FN int32_t readers() const { return words[8]; }
  PC_FN bool outputs_final() const { return (words[9] & 1) != 0; }  // not read again within the call
  PC_FN bool spans_hosts() const { return (words[9] & 2) != 0; }    // some of the ranks exchange messages
  PC_FN int32_t depth() const { return words[10]; }  // tiles in progress at a time
  PC_FN Wait exit_wait(int32_t i) const { return {words[kHeaderWords + 2 * i], words[kHeaderWords + 1 + 2 * i]}; }
  PC_FN Wait reader(int32_t i) const {
    const int32_t* w = words + kHeaderWords + 2 * exit_waits() + 2 * i;
    return {w[0], w[1]};
  }
  PC_FN Step first() const { return {words + kHeaderWords + 2 * exit_waits() + 2 * readers()}; }
};

// Owns a table.  The constructor checks every index, so that the executor need not; Plan::check checks what depends on
// the call.
class Schedule {
 public:
  explicit Schedule(std::vector<int32_t> table);
  ScheduleView view() const { return {table_.data()}; }
  bool uses_input() const { return uses_input_; }    // by this rank
  bool uses_output() const { return uses_output_; }
  // The steps whose messages may arrive as soon as a tile has begun.
  const std::vector<Step>& early_receives() const { return early_receives_; }

 private:
  Schedule(const Schedule&) = delete;  // early_receives_ points into the table
  void check_step(const Step& step);
  void check_message(const Step& step) const;

  std::vector<int32_t> table_;
  std::vector<Step> early_receives_;
  bool uses_input_ = false, uses_output_ = false;
};

// The position of each chunk, in elements: one triple per chunk suffices, since a rank holds a chunk at one offset of
// its input and one of its output.
struct Layout {
  std::vector<int64_t> length;
  std::vector<int64_t> input_offset;
  std::vector<int64_t> output_offset;
  int64_t longest = 0;
  Places input = Places::all, output = Places::all;  // of a rank that has the array
  int32_t ranks = 1;  // of a matrix

  // These throw InvalidArgument for a negative number, for no or too many chunks, and if a sum overflows.
  // Equal pieces of `count` elements, cut at multiples of `align` elements; the same for input and output.
  static Layout split(int64_t count, int32_t chunks, int64_t align);
  // One block per rank.  A packed buffer holds only its rank's block; otherwise it holds all, in rank order.
  static Layout blocks(const std::vector<int64_t>& counts, bool packed_input, bool packed_output);
  // Block s*n+d goes from rank s to rank d; inputs are ordered by d, outputs by s.
  static Layout matrix(const std::vector<int64_t>& counts, int32_t n);
};

}  // namespace pc
