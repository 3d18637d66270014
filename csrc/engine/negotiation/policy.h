// The decisions that an engine's ranks agree on: functions of plain data, independent of a carrier.
//
// The carriers apply them: see carrier.h.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/negotiation/announcement.h"

namespace pc::engine {

using Labels = std::function<std::string(int32_t rank)>;

// What has been announced about one round of an operation.  Plain data: the board stores it in shared memory.  Only
// `last`, `number` and the times depend on the order in which ranks have announced it.
struct Round {
  Signature signature;  // of the lowest rank
  Signature theirs;  // of the lowest rank that differs from it
  int32_t first, other;  // these ranks
  int32_t last;  // the rank that announced it last
  int32_t priority;  // the smallest, that is most urgent, of all ranks
  int64_t bytes;
  int64_t place;  // -1 if the ranks' places differ
  uint64_t number;  // rounds are numbered in order of their first announcement
  int64_t since, ready;  // nanoseconds of the steady clock: first announced, complete
  bool urgent;  // a caller waits for it
  bool differs;  // the ranks differ

  void begin(const Announcement& item, int32_t rank, bool wanted, uint64_t count, int64_t now);
  void add(const Announcement& item, int32_t rank, bool wanted);
  // Whether to run it without waiting for more to fuse.
  bool runs_at_once() const { return urgent || differs || !is_fused(signature.kind); }
  // How the ranks differ, as a message; empty if they agree.
  std::string difference(const std::string& name, const Labels& label) const;
};

// Whether an operation waits for `rank`: ranks that have joined need not announce it.  `Ranks`: a set of ranks.
template <class Ranks>
bool waits_for(Kind kind, const Ranks& announced, const Ranks& joined, int32_t rank) {
  return !announced.has(rank) && (kind == Kind::join || !joined.has(rank));
}

// Whether it waits for no rank.  The last ranks are checked first: their messages come last.
template <class Ranks>
bool is_complete(Kind kind, const Ranks& announced, const Ranks& joined, int32_t size) {
  for (int32_t rank = size - 1; rank >= 0; --rank)
    if (waits_for(kind, announced, joined, rank)) return false;
  return true;
}

// The complete operations that have not been cut into a batch yet.
struct Backlog {
  int64_t since;  // when the first of them became complete
  int64_t bytes;
  bool urgent;
  void add(const Round& round, bool first);
  // When to cut a batch, in nanoseconds of the steady clock; 0: now.
  int64_t due(int64_t threshold, double cycle_seconds) const;
};

// The next batch, as positions in `ready`, which is in order of completion: the most urgent operation, and those that
// can be fused with it, most urgent first, up to `threshold` bytes.  A group is not split: all of it that can be fused
// goes with its first member, regardless of size.  An operation about which the ranks differ is alone; a join comes
// last.
std::vector<int32_t> choose(std::span<const Round* const> ready, int64_t threshold);

// Processes a rank's announcements, in order: makes ready what they complete.  A join completes what the others wait
// for from that rank, first announced first, and only then itself.
// View: join(rank); rounds() -> those that are announced and not complete; number_of(round), and settle(round),
// which makes it ready if it is complete and returns whether it was.
template <class View, class Key>
bool settle(View& view, Kind kind, int32_t rank, const Key& round) {
  bool ready = false;
  if (kind == Kind::join) {
    view.join(rank);
    auto others = view.rounds();
    std::sort(others.begin(), others.end(),
              [&](const Key& a, const Key& b) { return view.number_of(a) < view.number_of(b); });
    for (const Key& other : others)
      if (other != round) ready = view.settle(other) || ready;
  }
  return view.settle(round) || ready;
}

// A rank's submission that its library refused, such as one of an array of a wrong type: the others wait for it.
struct Refusal {
  int32_t rank;
  std::string name, why;
  // Whether it was, or was part of, the submission of an operation: that of a group has its name without the number.
  bool concerns(std::string_view operation) const;
};

// An operation that not every rank has submitted.
struct Stall {
  std::string name;
  std::vector<int32_t> waiting, missing;  // ranks that have submitted it, and those that it waits for
  double seconds;
  // Missing ranks that have submitted another operation, which waits for a waiting one: it may be a deadlock.
  struct Crossing {
    int32_t missing, waiting;
    std::string name;
  };
  std::vector<Crossing> crossings;
  std::vector<Refusal> refusals;  // of missing ranks
};

// The ranks that an announced operation waits for; joins are not reported, since they may take as long as the ranks
// have work.
template <class Ranks>
Stall stall_of(const std::string& name, const Round& round, const Ranks& announced, const Ranks& joined, int32_t size,
               int64_t now) {
  const Kind kind = round.signature.kind;
  Stall stall{name, {}, {}, static_cast<double>(now - round.since) * 1e-9, {}, {}};
  for (int32_t rank = 0; rank < size; ++rank) {
    if (announced.has(rank)) stall.waiting.push_back(rank);
    else if (kind != Kind::join && waits_for(kind, announced, joined, rank)) stall.missing.push_back(rank);
  }
  return stall;
}

// Those of all stalls that have waited for `seconds`, with their crossings and refusals.  `reporter`: only those whose
// first waiting rank it is; -1: all.
std::vector<Stall> overdue(const std::vector<Stall>& all, std::span<const Refusal> refusals, double seconds,
                           int32_t reporter);

// "rank 3", or "ranks 1, 2" and so on.  `number`: a rank's label in messages.
std::string name_ranks(std::span<const int32_t> ranks, const Labels& number);

// One line each.
std::string list(const std::vector<Stall>& stalls, const Labels& number);

}  // namespace pc::engine
