// The executor: one source for CPU ranks (CpuGroup, g++) and GPU ranks (CudaGroup, nvcc).
//
// A Group is a set of lanes that run this function together on behalf of one rank:
//   lane(), width()                   who I am among the lanes, and how many there are
//   all(ok)                           barrier; true on every lane if lane 0 passed true
//   enter(base, publish)              lane 0: say which call this is; and, if told to, publish that the rank is in it
//   await(peer, target)               lane 0: has the peer's counter reached the target?
//   publish(value)                    lane 0: everything written so far is visible to whoever reads value
//   guard(slot), hold(slot, wait)     lane 0: wait for, and note, the readers of a scratch slot
//   combine(step, tile, slot)         all lanes: reduce the step's sources into its targets
//   failure()                         why an await gave up: pending (a group that does not block) or failed
// Counters only grow.  Waits load with acquire, publishing stores with release; there is no other signal.
#pragma once

#include "base/status.h"
#include "schedule/schedule.h"

namespace pc {

// Where a call stands.  A group that does not block returns `pending` and is resumed from here.
struct Cursor {
  bool entered = false;
  int64_t tile = 0;
  int32_t index = -1;  // step within the tile; -1: the slot's readers have not been waited for
  Step step{nullptr};
};

struct Span {
  uint64_t base;     // the counter value that says "entered"; equal on all ranks
  int64_t tiles;     // at least 1, equal on all ranks
  uint32_t slot;     // slot of the first tile
};

// Count 0 means "has entered the call", whatever the tile: a step that nobody waits for is not published.
template <class Group>
PC_FN bool await(Group& g, const Span& span, uint64_t tile_base, Wait wait) {
  const uint64_t target = wait.count == 0 ? span.base : tile_base + static_cast<uint64_t>(wait.count);
  return g.all(g.lane() != 0 || g.await(wait.peer, target));
}

template <class Group>
PC_FN Status execute(Group& g, const ScheduleView s, const Span span, Cursor& at) {
  if (!at.entered) {
    // A first step that waits for nobody and is published says it too, for half the traffic.
    const bool soon = s.steps() > 0 && s.first().waits() == 0 && s.first().consumed();
    if (g.lane() == 0) g.enter(span.base, !soon);
    at.entered = true;
  }
  for (; at.tile < span.tiles; ++at.tile, at.index = -1) {
    const uint64_t base = span.base + static_cast<uint64_t>(at.tile) * s.stride();
    const uint32_t slot = (span.slot + static_cast<uint32_t>(at.tile)) & 1u;
    if (at.index < 0) {
      if (s.cells() > 0 && !g.all(g.lane() != 0 || g.guard(slot))) return g.failure();
      at.index = 0;
      at.step = s.first();
    }
    for (; at.index < s.steps(); ++at.index, at.step = at.step.next()) {
      const Step step = at.step;
      for (int32_t w = 0; w < step.waits(); ++w)
        if (!await(g, span, base, step.wait(w))) return g.failure();
      g.combine(step, at.tile, slot);
      if (step.consumed() && g.all(true) && g.lane() == 0) g.publish(base + at.index + 1);
    }
    if (g.lane() == 0)
      for (int32_t r = 0; r < s.readers(); ++r) g.hold(slot, s.reader(r).peer, base + s.reader(r).count);
  }
  const uint64_t last = span.base + static_cast<uint64_t>(span.tiles - 1) * s.stride();
  for (int32_t w = 0; w < s.exit_waits(); ++w)
    if (!await(g, span, last, s.exit_wait(w))) return g.failure();
  return g.all(true) ? Status::done : g.failure();  // no lane leaves before all are through
}

}  // namespace pc
