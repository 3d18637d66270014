// Named operations, submitted in any order on any rank, run in the background.
//
// One thread drives: it waits for the next batch and runs it. It is the engine's thread, or a caller that waits anyway,
// which saves two thread switches.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/takeover.h"
#include "engine/fused.h"
#include "engine/negotiation/board.h"
#include "engine/timeline.h"
#include "executor/cpu/team.h"

namespace pc::engine {

// One rank's operation in progress.
class Pending {
 public:
  Pending(Announcement announcement, const char* input, char* output, std::shared_ptr<void> keep)
      : announcement_(std::move(announcement)), input_(input), output_(output), keep_(std::move(keep)) {}

  const Announcement& announcement() const { return announcement_; }
  const std::string& name() const { return announcement_.name; }
  bool done() const { return done_.load(std::memory_order_acquire); }
  const std::optional<CommunicatorFault>& fault() const { return fault_; }  // once done
  int32_t number() const { return number_; }  // result of join: the last rank to do so
  const std::shared_ptr<void>& keep() const { return keep_; }  // until it is done
  void refuse() { keep_.reset(); }  // it was not submitted: nothing will complete it
  // What the owner of an operation that is not in progress, and that no other thread can reach, submits it with again.
  void renew(Announcement announcement) { announcement_ = std::move(announcement); }
  void renew(const char* input, char* output, int64_t place, std::shared_ptr<void> keep);

  std::atomic<bool> watched{false};  // notify the runner when it is done

 private:
  friend class Engine;
  Announcement announcement_;
  const char* input_;
  char* output_;
  std::shared_ptr<void> keep_;  // arrays
  int64_t submitted_ = 0;  // nanoseconds of the steady clock
  std::atomic<bool> done_{false};
  std::optional<CommunicatorFault> fault_;
  int32_t number_ = -1;
};

using Pendings = std::vector<std::shared_ptr<Pending>>;

// Work that only Python can do.
class Runner {
 public:
  virtual ~Runner() = default;
  // Runs a batch that the core has no code for; entries of `mine` are null if this rank has joined.  Handles errors of
  // the batch itself.  Throws CommunicatorFault.
  virtual void run(const Pendings& mine, const std::vector<Member>& members) = 0;
  // Called when watched operations are done, with their keeps.
  virtual void finished(const std::vector<std::shared_ptr<void>>& kept) = 0;
};

constexpr auto kCheckEvery = std::chrono::milliseconds(5);  // how often an idle driver checks its peers
constexpr auto kMoment = std::chrono::milliseconds(1);  // longer than a running rank holds the board
constexpr auto kInspectEvery = std::chrono::milliseconds(250);  // how often the engine's thread checks for stalls

struct StallSettings {
  double warn_seconds = 60;  // 0: never
  double shutdown_seconds = 0;  // 0: never
};

class Engine {
 public:
  // Throws InvalidArgument if the carrier is for other ranks or has an engine.
  Engine(std::shared_ptr<Team> team, std::shared_ptr<Carrier> carrier, FusedAllreduce::PlanMaker maker, char* buffer,
         int64_t bytes, int32_t buffers, StallSettings stall, std::shared_ptr<Runner> runner);

  // All become ready together.  `now`: the caller will wait() for them.  Throws InvalidArgument if one of the names is
  // in progress, CommunicatorFault if the engine has failed.
  // wait(), close() and submit() `now` refuse a thread that drives: it is inside an operation of the engine, and called
  // from a signal handler, a callback or a finalizer.
  void submit(const Pendings& operations, bool now);
  // Until it is done or the limit is reached; may run any operation meanwhile.  False: not done.
  // `flushing`: it is not held back for fusion, as after flush().
  bool wait(const std::shared_ptr<Pending>& operation, Clock::time_point limit, bool flushing = false);
  // Arrays kept by ended operations, to be released by a thread that may.
  std::vector<std::shared_ptr<void>> take_spent();
  void loop();  // the engine's thread; returns after close()
  void close();  // operations in progress fail

  bool flush(const Pending& operation, Clock::time_point limit = Carrier::kNoLimit);  // false: not by `limit`
  void require_outside() const;  // throws if the caller drives
  Carrier& carrier() { return *carrier_; }
  Timeline& timeline() { return timeline_; }
  std::pair<int64_t, int64_t> traffic() const { return {reduced_.load(), batches_.load()}; }  // bytes, batches
  void refuse(const std::string& name, const std::string& why);  // see Carrier::refuse
  std::string report();  // which operations wait for which ranks, one per line

  static std::atomic<uint32_t> reports_wanted;  // incremented by a signal handler

 private:
  bool start_driving(bool to_close);
  void stop_driving();
  bool announce(const Pendings& operations, bool now);
  void take_names(const Pendings& operations);
  void drop_names(std::span<const std::shared_ptr<Pending>> operations);
  void locked_out(int32_t holder, std::chrono::nanoseconds waited);
  void raise_if_lost(const std::function<std::string(int32_t)>& missing);
  bool may_take_over() const;
  void observe(Clock::duration since);
  bool others_are_busy(int32_t awaited) const;
  bool run_next(Clock::time_point limit);
  void run_fetched(const std::vector<Member>& members);
  bool turn(Clock::time_point limit, int32_t wanted, bool awaited = true);
  void drain();
  bool await_batch(Clock::time_point limit, int32_t wanted, bool awaited, std::vector<Member>& fetched);
  int32_t find_lost() const;
  void check_peers(Clock::time_point now);
  void run_batch(const std::vector<Member>& members);
  void run_fused(const std::vector<Member>& members, const Pendings& mine);
  void run_agreed(const std::vector<Member>& members, const Pendings& mine);
  void run_traced(const std::vector<Member>& members, const Pendings& mine);
  Pendings claim(const std::vector<Member>& members);
  void complete(const Pendings& operations, const std::optional<CommunicatorFault>& fault, int32_t number = -1);
  void fail(const CommunicatorFault& fault);
  void inspect();
  void give_report();
  void watch_stalls();
  std::string list(const std::vector<Stall>& stalls, double seconds) const;
  std::string label() const;

  std::shared_ptr<Team> team_;
  std::shared_ptr<Carrier> carrier_;
  Board* board_;  // the same, if it is one: it shows what the other ranks do; null between hosts
  Timeline timeline_;
  FusedAllreduce fused_;
  StallSettings stall_;
  std::shared_ptr<Runner> runner_;

  std::mutex mutex_;
  std::condition_variable idle_;  // the engine's thread waits here for work
  std::condition_variable completed_;  // callers wait here
  struct HashOfName {
    size_t operator()(const NameHash& hash) const { return hash.words[0]; }
  };
  std::unordered_map<NameHash, std::shared_ptr<Pending>, HashOfName> flying_;  // by name
  std::vector<Member> fetched_;  // a batch that submit() has fetched, for the next thread that drives
  std::optional<CommunicatorFault> fault_;
  std::vector<std::shared_ptr<void>> spent_;
  Takeover takeover_;
  bool driven_ = false, closing_ = false;
  std::atomic<std::thread::id> driver_{};  // default: no driver
  int waiters_ = 0;
  std::atomic<int64_t> reduced_{0}, batches_{0};
  Clock::time_point checked_{}, inspected_{};
  // This rank's observations of another one while waiting.
  struct Progress {
    uint64_t beats = 0, completed = 0;
    Clock::duration silent{};  // time without running
    Clock::duration behind{};  // time without completing the same batch
  };
  std::vector<Progress> progress_;  // of each rank
  uint32_t reports_given_ = 0;
};

}  // namespace pc::engine
