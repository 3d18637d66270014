// What brings the ranks' announcements together, and gives every rank the same batches in the same order.
//
// There are two: the board, in memory that the ranks of one host share, and rounds of messages between hosts.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/negotiation/policy.h"

namespace pc::engine {

// What is known about an operation of a batch.  On a board, given only for those that are not plain: the ranks differ,
// some have joined, or Python runs them.
struct Details {
  std::string name;
  Signature signature;
  std::string difference;       // how the ranks differ; empty if they agree
  std::vector<int64_t> rows;    // of each rank; 0 for those that have joined
  std::vector<int32_t> absent;  // ranks that have joined and contribute nothing, ascending
  int32_t last = -1;  // the rank that completed it
  bool lacks(int32_t rank) const { return std::binary_search(absent.begin(), absent.end(), rank); }
};

// An operation of a batch.
struct Member {
  NameHash hash{};  // of its name; its slot may be another operation's once all ranks have fetched the batch
  int64_t place = -1;
  int64_t since = 0, ready = 0;  // nanoseconds of the steady clock: first submitted, completed
  std::unique_ptr<Details> details;
};

// One rank's end of it.
class Carrier {
 public:
  using Limit = std::chrono::steady_clock::time_point;
  static constexpr Limit kNoLimit = Limit::max();

  Carrier(int32_t rank, int32_t size) : rank_(rank), size_(size) {}
  virtual ~Carrier() = default;
  Carrier(const Carrier&) = delete;
  int32_t rank() const { return rank_; }
  int32_t size() const { return size_; }
  // Whether this is the first engine that asks: a carrier serves one.
  bool take() { return !taken_.exchange(true); }

  // What takes a limit may have to wait for other ranks, and has had no effect after the limit.

  // Throws InvalidArgument if more operations are in progress than there are slots.  False: not announced by `limit`.
  // `urgent`: a caller waits for them.
  // `fetched`: for the batch that becomes due by this, if the carrier can fetch it at the same time.
  virtual bool announce(std::span<Announcement* const> items, bool urgent, Limit limit = kNoLimit,
                        std::vector<Member>* fetched = nullptr) = 0;
  // This rank submits nothing more: operations that are not complete lack it from now on.  False, without effect, if
  // the others still depend on it.  `regardless`: also if they may.
  virtual bool leave(bool regardless = false, Limit limit = kNoLimit) = 0;
  // A caller waits for an operation, which has this slot: do not hold it back for fusion.  False: not by `limit`.
  virtual bool flush(int32_t slot, Limit limit = kNoLimit) = 0;
  // The next batch in order; empty: not cut yet.
  virtual std::vector<Member> fetch(Limit limit = kNoLimit) = 0;
  // Cuts a batch if it is due; otherwise returns when one may be due (the far future: nothing is ready).
  // `at_once`: without waiting for more operations to fuse; so, too, if the operation in slot `wanted` (-1: none), for
  // which a thread waits, is ready.  `fetched`: for the batch.
  virtual Limit cut(bool at_once = false, Limit limit = kNoLimit, int32_t wanted = -1,
                    std::vector<Member>* fetched = nullptr) = 0;
  // Throws CommunicatorFault if the ranks have ended, and all batches were fetched.
  virtual bool has_batch() const = 0;
  virtual bool has_ready() const = 0;    // an operation waits to be cut
  virtual void complete_batch() = 0;     // this rank has completed the batches it has fetched

  // A caller begins or ends to wait for an operation.
  virtual void note_wait(bool) {}

  // A number that changes with each update, and sleeping until it does.
  virtual uint32_t news() const = 0;
  virtual void sleep(uint32_t seen, std::chrono::nanoseconds limit) = 0;
  virtual void wake() = 0;

  // Tells the others that this rank's submission of an operation, or of a group, was refused, until it submits it.
  virtual void refuse(const std::string& name, const std::string& why, Limit limit = kNoLimit) = 0;
  // The operations that have waited for `seconds`; of all ranks, or those that this one reports.
  virtual std::vector<Stall> stalls(double seconds, bool all, Limit limit = kNoLimit) = 0;
  // Ends the engine on all ranks, once they have run what they have agreed on.  False: not done by this carrier.
  virtual bool end_all(const CommunicatorFault&) { return false; }
  // Ranks that have not answered for `seconds`, as a line of text; empty: none, or not known here.
  virtual std::string silence(double) const { return {}; }
  // Apply to every cut, on all ranks.
  virtual void tune(int64_t threshold, double cycle_seconds) = 0;
  virtual int64_t threshold() const = 0;
  virtual double cycle_seconds() const = 0;

 protected:
  const int32_t rank_, size_;

 private:
  std::atomic<bool> taken_{false};
};

}  // namespace pc::engine
