// The shared-memory board of an engine's ranks: which ranks have submitted which operations, and what runs next.
//
// There is no coordinator. A rank that submits an operation marks itself in the operation's slot; the rank that
// completes the slot makes the operation ready. The next rank that needs work cuts a batch from the ready operations.
// All ranks run the batches in the same order. A slot caches the agreement of earlier rounds: a repeated operation
// finds it, and no message is exchanged beyond the mark itself.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/negotiation/policy.h"

namespace pc::engine {

// Given only for operations that are not plain: the ranks differ, some have joined, or Python runs them.
struct Details {
  std::string name;
  Signature signature;
  std::string difference;     // how the ranks differ; empty if they agree
  std::vector<int64_t> rows;  // of each rank
  RankSet absent;             // ranks that have joined and contribute nothing
  int32_t last = -1;  // the rank that completed it
};

// An operation of a batch.
struct Member {
  NameHash hash{};  // of its name; its slot may be another operation's once all ranks have fetched the batch
  int64_t place = -1;
  int64_t since = 0, ready = 0;  // nanoseconds of the steady clock: first submitted, completed
  std::unique_ptr<Details> details;
};

struct Header;
struct Slot;

class Board {
 public:
  using Limit = std::chrono::steady_clock::time_point;
  static constexpr Limit kNoLimit = Limit::max();
  static size_t bytes(int32_t size, int32_t slots);

  // `memory`: shared by all ranks, initially zero.  One rank calls prepare() before any other uses its board.
  Board(std::shared_ptr<void> owner, char* memory, int32_t rank, int32_t size, int32_t slots);
  void prepare();
  bool prepared() const;

  // The following take the board's lock, waiting for it until `limit`; after the limit they have had no effect.  See
  // locked_out for what ends a wait without a limit.

  // Throws InvalidArgument if more operations are in progress than there are slots.  False: not announced by `limit`.
  // `fetched`: for the batch that becomes due by this, which is then cut and fetched in the same turn of the lock.
  bool announce(std::span<Announcement* const> items, bool urgent, Limit limit = kNoLimit,
                std::vector<Member>* fetched = nullptr);
  // This rank submits nothing more: operations that are not complete lack it from now on.  False, without effect, if
  // the others still depend on it: for a batch, or for an operation that all have resubmitted before a slow rank has
  // fetched the previous round.  `regardless` of the latter.
  bool leave(bool regardless = false, Limit limit = kNoLimit);
  // A caller waits for it: do not hold it back for fusion.  False: not by `limit`.
  bool flush(int32_t slot, Limit limit = kNoLimit);
  // The next batch in order; empty: not cut yet.
  std::vector<Member> fetch(Limit limit = kNoLimit);
  // Cuts a batch if it is due; otherwise returns when one may be due (the far future: nothing is ready).
  // `at_once`: without waiting for more operations to fuse; so, too, if the operation in slot `wanted` (-1: none), for
  // which a thread waits, is ready.  `fetched`: for the batch, which is then fetched in the same turn of the lock,
  // since every turn is one that other ranks wait for.
  Limit cut(bool at_once = false, Limit limit = kNoLimit, int32_t wanted = -1, std::vector<Member>* fetched = nullptr);
  // Whether the lock was free at some moment before `limit`.
  bool await_lock(Limit limit);
  int32_t holder() const;  // the rank that holds it now; -1: none, or unknown
  bool has_batch() const;
  bool has_ready() const;

  // A number that changes with each update, and sleeping until it does.
  uint32_t news() const;
  void sleep(uint32_t seen, std::chrono::nanoseconds limit);
  void wake();

  // Called several times a second by a rank that is not stopped, whatever its program does.
  void beat();
  uint64_t beats(int32_t rank) const;

  // Progress: batches cut so far, and those that a rank has completed.
  uint64_t batches() const;
  uint64_t completed(int32_t rank) const;
  void complete_batch();  // this rank has completed the batches it has fetched

  // Tells the others that this rank's submission of an operation, or of a group, was refused, until it submits it.
  void refuse(const std::string& name, const std::string& why, Limit limit = kNoLimit);
  std::vector<Stall> stalls(double seconds, bool all, Limit limit = kNoLimit);
  // An operation, including a join, that some rank has submitted and `rank` has not but must.  Empty: none.
  std::string awaited_from(int32_t rank, Limit limit = kNoLimit);
  // Shared by all ranks: apply to every cut.
  void tune(int64_t threshold, double cycle_seconds);
  int64_t threshold() const;
  double cycle_seconds() const;

  int32_t rank() const { return rank_; }
  int32_t size() const { return size_; }
  bool spins = false;  // whether to wait for the lock without yielding the core for a moment: every rank has a core
  // For messages; set by owners that know more about the ranks.
  Labels label = [](int32_t rank) { return "rank " + std::to_string(rank); };
  // The rank that died while writing here, if the board does not know it; -1: unknown.
  std::function<int32_t()> who_died;
  // Called every few milliseconds while the lock is unavailable: with the rank that holds it (-1: unknown), and for how
  // long that rank has held it.  Throws to give up.
  std::function<void(int32_t holder, std::chrono::nanoseconds waited)> locked_out;

 private:
  class Lock;
  struct Carrier;
  int take_lock(Limit limit);
  std::chrono::nanoseconds same_holder_for();
  int32_t find(Announcement& item);
  int32_t take_slot();
  void forget(int32_t slot);
  void note(Announcement& item, bool urgent, int64_t now);
  void drop_refusals(std::string_view name);
  std::vector<Refusal> refusals() const;
  bool complete(const Slot& slot) const;
  bool awaits_fetch(bool of_mine) const;
  bool settle(int32_t slot, int64_t now);
  int64_t cut_ready(bool at_once, std::vector<Member>* fetched);
  void cut_batch(const std::vector<int32_t>& chosen);
  bool is_ready(int32_t slot) const;
  std::vector<Member> take_next(bool& ready);
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
  std::atomic<uint64_t> holding_seen_{0};  // the holding of the lock that this rank last waited for
  std::atomic<int64_t> holding_since_{0};  // and since when; nanoseconds of the steady clock
};

}  // namespace pc::engine
