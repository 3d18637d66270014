// One call in flight: what it does, where it stands, and for what it waits.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>

#include "executor/copy.h"
#include "executor/cpu/staging.h"
#include "executor/execute.h"
#include "executor/plan.h"

namespace pc {

using Clock = std::chrono::steady_clock;

// What a wait is for: that the peer's counter reaches the target or, if `sent`, that so many messages to it have been
// taken by the link; or, with `staging`, that the tile `target` of this rank's own arrays is staged; or, with
// `placement`, that the peer has sent that of its host's ranks in the call `target`.
struct Goal {
  int32_t peer;
  uint64_t target;
  bool sent = false;
  Staging* staging = nullptr;
  bool placement = false;
};

// What a call does when it has to wait.
enum class Waiting : uint8_t {
  blocks,    // until the peer arrives or the deadline passes
  hopes,     // about a microsecond, then returns `pending`
  declines,  // returns `pending` at once
  limited,   // as `blocks`, but returns `pending` at a given time
};

// One call in flight.
struct Operation {
  std::shared_ptr<const Plan> plan;
  std::shared_ptr<const Plan> fallback;  // staged; used if the ranks' placements differ
  std::unique_ptr<Copy> gather;  // creates `input`, which only this rank reads, or null
  std::unique_ptr<Copy> fill;    // creates the input of the plan on windows, which peers read, or null
  std::unique_ptr<Staging> staging;  // if `input` and `output` are in device memory
  const void* input = nullptr;
  void* output = nullptr;
  Location input_at, output_at;
  int64_t step = 0;  // of a weighted call: ranks compare it, and their schedules, but plans do not depend on it
  std::chrono::duration<double> timeout{};
  Cursor cursor{};
  Clock::time_point deadline{};  // set by the first wait that does not end at once
  Clock::time_point waiting_since{};            // of the wait in progress
  std::pair<int32_t, uint64_t> awaited{};  // peer and target of that wait
  Clock::time_point spared{};         // since when: a later call was given up
  Clock::time_point checked{};        // when the peers were last checked
  Clock::time_point until = Clock::time_point::max();  // of limited waiting
  // The next three are set when the call begins, not before: GCC would clear all of an Operation, word by word.
  uint64_t sequence;
  uint64_t digest;  // compared by peers: differs between any two calls, and between calls of different sequence
  Span span;
  bool negotiates = false;  // agree with the peers on the plan: arrays may be in windows
  uint8_t placement = 0;    // of the ranks of this host, when it has been sent to other hosts
  bool placement_sent = false;
  bool begun = false;
  bool agreed = false;
  bool caller_waits = false;  // in a blocking call: nothing else in this thread needs its core
  Waiting waiting = Waiting::blocks;
};

}  // namespace pc
