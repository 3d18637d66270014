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

#include "engine/negotiation/carrier.h"

namespace pc::engine {

struct Header;
struct Slot;

class Board final : public Carrier {
 public:
  static size_t bytes(int32_t size, int32_t slots);

  // `memory`: shared by all ranks, initially zero.  One rank calls prepare() before any other uses its board.
  Board(std::shared_ptr<void> owner, char* memory, int32_t rank, int32_t size, int32_t slots);
  void prepare();
  bool prepared() const;

  // What takes a limit takes the board's lock, waiting for it until then.  See locked_out for what ends a wait without
  // a limit.  A batch is fetched in the turn of the lock in which it is cut, since other ranks wait for every turn.

  bool announce(std::span<Announcement* const> items, bool urgent, Limit limit = kNoLimit,
                std::vector<Member>* fetched = nullptr) override;
  // The others depend on this rank for a batch, or for an operation that all have resubmitted before a slow rank has
  // fetched the previous round.  `regardless` of the latter.
  bool leave(bool regardless = false, Limit limit = kNoLimit) override;
  bool flush(int32_t slot, Limit limit = kNoLimit) override;
  std::vector<Member> fetch(Limit limit = kNoLimit) override;
  Limit cut(bool at_once = false, Limit limit = kNoLimit, int32_t wanted = -1,
            std::vector<Member>* fetched = nullptr) override;
  // Whether the lock was free at some moment before `limit`.
  bool await_lock(Limit limit);
  int32_t holder() const;  // the rank that holds it now; -1: none, or unknown
  bool has_batch() const override;
  bool has_ready() const override;

  uint32_t news() const override;
  void sleep(uint32_t seen, std::chrono::nanoseconds limit) override;
  void wake() override;

  // Called several times a second by a rank that is not stopped, whatever its program does.
  void beat();
  uint64_t beats(int32_t rank) const;

  // Progress: batches cut so far, and those that a rank has completed.
  uint64_t batches() const;
  uint64_t completed(int32_t rank) const;
  void complete_batch() override;

  void refuse(const std::string& name, const std::string& why, Limit limit = kNoLimit) override;
  std::vector<Stall> stalls(double seconds, bool all, Limit limit = kNoLimit) override;
  // An operation, including a join, that some rank has submitted and `rank` has not but must.  Empty: none.
  std::string awaited_from(int32_t rank, Limit limit = kNoLimit);
  void tune(int64_t threshold, double cycle_seconds) override;
  int64_t threshold() const override;
  double cycle_seconds() const override;

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
  struct View;
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
  int32_t slots_;
  uint64_t fetched_ = 0;  // batches
  std::atomic<uint64_t> holding_seen_{0};  // the holding of the lock that this rank last waited for
  std::atomic<int64_t> holding_since_{0};  // and since when; nanoseconds of the steady clock
};

}  // namespace pc::engine
