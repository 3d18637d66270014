// The executor: one source for CPU ranks (CpuGroup, g++) and GPU ranks (CudaGroup, nvcc).
//
// A Group is a set of lanes that run this function together on behalf of one rank:
//   lane(), width()                   this lane's index, and the number of lanes
//   pollers()                         how many lanes, from 0, poll waits: each its own share of them
//   all(ok)                           barrier; true on every lane if every poller passed true
//   enter(base, publish)              announce the call; and, if `publish`, publish that the rank has entered it
//   await(peer, target)               poller only: has the peer's counter reached the target?
//   publish(value, step, last)        everything written before the barrier is visible to readers of value, at once or,
//                                     if the step is not the last of its tile, with the next step, before any wait
//   slot(span, tile)                  which part of scratch the tile uses; the same on all ranks
//   guard(slot)                       wait for the readers of a scratch slot; ok as for all()
//   open(tile, slot)                  from now on messages from other hosts may be written to the tile's early places;
//                                     ok as for all(), once this rank's arrays can be accessed
//   kMessages                         ranks may be on several hosts: only then do steps exchange messages, and lag
//   post(step, tile, slot)            opens the place of one step, if kMessages
//   hold(slot, peer, target)          poller only: record a reader of a scratch slot
//   combine(step, tile, slot)         reduce the step's sources into its targets; or send them to other hosts
//   exits(schedule)                   how many of the schedule's exit waits the call has; the same on all lanes
// All lanes call everything, except the functions for pollers.
//   failure()                         why an await gave up: pending (a group that does not block) or failed
// Counters only grow.  Waits load with acquire, publishing stores with release; there is no other signal.
#pragma once

#include "base/status.h"
#include "schedule/schedule.h"

namespace pc {

// Where a call stands.  A group that does not block returns `pending` and is resumed from here.
struct Cursor {
  bool entered = false;
  int64_t tile = 0;  // the newest one; steps with a lag are that many tiles behind it
  int32_t position = -1;  // step within the tile; -1: the slot's readers have not been waited for
  Step step{nullptr};
};

struct Span {
  uint64_t base;  // the counter value for "entered"; equal on all ranks
  int64_t tiles;  // at least 1, equal on all ranks
  uint32_t slot;  // of the first tile
};

// This lane's share of some waits.  Count 0 means "has entered the call", whatever the tile: a step that no rank waits
// for is not published.
template <class Group, class WaitAt>
PC_FN bool await(Group& g, const Span& span, uint64_t tile_base, int32_t count, WaitAt wait_at) {
  if (g.lane() >= g.pollers()) return true;
  for (int32_t i = g.lane(); i < count; i += g.pollers()) {
    const Wait wait = wait_at(i);
    const uint64_t target = wait.count == 0 ? span.base : tile_base + static_cast<uint64_t>(wait.count);
    if (!g.await(wait.peer, target)) return false;
  }
  return true;
}

template <class Group>
PC_FN Status execute(Group& g, const ScheduleView s, const Span span, Cursor& at) {
  const Step first = s.first();
  if (!at.entered) {
    // A published first step without waits also announces the entry, for half the traffic.
    const bool soon = s.steps() > 0 && first.waits() == 0 && first.consumed();
    g.enter(span.base, !soon);
    at.entered = true;
  }
  const int64_t iterations = span.tiles + (Group::kMessages ? s.depth() - 1 : 0);
  for (; at.tile < iterations; ++at.tile, at.position = -1) {
    const uint64_t base = span.base + static_cast<uint64_t>(at.tile) * s.stride();
    const uint32_t newest_slot = g.slot(span, at.tile);
    if (at.position < 0) {
      if (at.tile < span.tiles) {
        const uint32_t slot = newest_slot;
        if (s.cells() > 0 && !g.all(g.guard(slot))) return g.failure();
        if (!g.open(at.tile, slot)) return g.failure();
        if (g.lane() < g.pollers())
          for (int32_t r = g.lane(); r < s.readers(); r += g.pollers())
            g.hold(slot, s.reader(r).peer, base + s.reader(r).count);
      }
      at.position = 0;
      at.step = first;
    }
    for (; at.position < s.steps(); ++at.position, at.step = at.step.next()) {
      const Step step = at.step;
      int64_t tile = at.tile;
      uint64_t tile_base = base;
      uint32_t slot = newest_slot;
      if constexpr (Group::kMessages) {
        if (const int32_t lag = step.lag(); lag != 0) {
          tile -= lag;
          tile_base -= static_cast<uint64_t>(lag) * s.stride();
          slot = g.slot(span, tile);
        }
        if (tile < 0 || tile >= span.tiles) continue;
        if (step.receives_late()) {  // its place is free after all waits but the first, for the message
          const auto free_at = [step](int32_t i) { return step.wait(i + 1); };
          if (step.waits() > 1 && !g.all(await(g, span, tile_base, step.waits() - 1, free_at))) return g.failure();
          g.post(step, tile, slot);
        }
      }
      const auto wait_at = [step](int32_t i) { return step.wait(i); };
      if (step.waits() > 0 && !g.all(await(g, span, tile_base, step.waits(), wait_at))) return g.failure();
      g.combine(step, tile, slot);
      if (step.consumed() && g.all(true)) g.publish(base + at.position + 1, step, at.position + 1 == s.steps());
    }
  }
  const uint64_t last = span.base + static_cast<uint64_t>(span.tiles - 1) * s.stride();
  // No lane leaves before all have completed.
  const bool through = await(g, span, last, g.exits(s), [s](int32_t i) { return s.exit_wait(i); });
  return g.all(through) ? Status::done : g.failure();
}

}  // namespace pc
