// What the ranks of an engine tell each other, in shared memory: who has submitted what, and what runs next.
//
// Nobody coordinates. A rank that submits an operation notes itself in the operation's slot; the one that completes
// the slot makes the operation ready. Whoever needs work next cuts a batch from what is ready. All ranks run the
// batches in their order. A slot is the cached answer of earlier rounds: an operation that comes again finds it, and
// no message is exchanged beyond the note itself.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/signature.h"

namespace pc::engine {

// What one rank says about one operation.
struct Announcement {
  std::string name;
  Signature signature;
  int32_t priority = 0;
  int64_t bytes = 0;
  int64_t place = -1;  // where in the ranks' windows the array lies, the same number on all ranks; -1: elsewhere
  int64_t rows = 0;    // of this rank's array, where ranks may differ
  int32_t slot = -1;   // result of announce()
};

// Told only of operations that are not plain: the ranks differ, some have joined, or Python runs it.
struct Details {
  std::string name;
  Signature signature;
  std::string difference;     // how ranks differ; empty: they agree
  std::vector<int64_t> rows;  // of each rank
  RankSet absent;             // who takes part with nothing, having joined
  int32_t last = -1;  // who completed it
};

// An operation of a batch.
struct Member {
  int32_t slot = -1;
  int64_t place = -1;
  int64_t since = 0, ready = 0;  // nanoseconds of the steady clock: first submitted, completed
  std::unique_ptr<Details> details;
};

// Operations that no rank, or not every rank, has submitted for long.
struct Stall {
  std::string name;
  std::vector<int32_t> missing;
  int32_t reporter;  // the first of those who wait
  double seconds;
};

struct Header;
struct Slot;

class Board {
 public:
  static size_t bytes(int32_t size, int32_t slots);

  // `memory`: shared by all ranks, zeros at first.  One rank calls prepare() before any other uses its board.
  Board(std::shared_ptr<void> owner, char* memory, int32_t rank, int32_t size, int32_t slots);
  void prepare();

  // Throws InvalidArgument if there are more operations under way than slots.
  void announce(std::vector<Announcement>& items, bool urgent);
  // This rank submits nothing more: what is not complete lacks it from now on.  False, and nothing has happened, if the
  // others count on it for something yet.
  bool leave();
  void urge(int32_t slot);  // somebody waits for it: do not hold it back for others to fuse with
  // The next batch in order; empty: not cut yet.
  std::vector<Member> fetch();
  // Cuts a batch if there is reason to; else says when there may be one (the far future: nothing is ready).
  // `at_once`: without waiting for more to fuse.
  std::chrono::steady_clock::time_point cut(bool at_once = false);
  bool has_batch() const;
  bool has_ready() const;

  // A number that changes with every piece of news, and sleeping until it does.
  uint32_t news() const;
  void sleep(uint32_t seen, std::chrono::nanoseconds limit);
  void wake();

  std::vector<Stall> stalls(double seconds, bool all);
  // Shared by all ranks: whoever cuts obeys them.
  void tune(int64_t threshold, double cycle_seconds);
  int64_t threshold() const;
  double cycle_seconds() const;

  int32_t rank() const { return rank_; }
  int32_t size() const { return size_; }
  // For messages; whoever knows more about the ranks sets it.
  std::function<std::string(int32_t)> label = [](int32_t rank) { return "rank " + std::to_string(rank); };
  // Which rank has died, asked where one did so in the midst of writing here; -1: unknown.
  std::function<int32_t()> who_died;

 private:
  class Lock;
  int32_t find(const std::string& name, const uint64_t (&hash)[2]);
  int32_t take_slot();
  void forget(int32_t slot);
  void note(Announcement& item, bool urgent, int64_t now);
  bool complete(Slot& slot) const;
  bool settle(int32_t slot, int64_t now);
  std::vector<int32_t> choose();
  void cut_batch(const std::vector<int32_t>& chosen);
  std::unique_ptr<Details> details_of(Slot& slot) const;
  Slot& slot(int32_t index) const;

  std::shared_ptr<void> owner_;
  Header* header_;
  char* slots_at_;
  int32_t *buckets_, *ready_, *ring_;
  struct Batch;
  Batch* batches_;
  int32_t rank_, size_, slots_;
  uint64_t fetched_ = 0;  // batches
};

}  // namespace pc::engine
