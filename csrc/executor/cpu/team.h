// One rank's part of a communicator: the state that calls share, and how a call is run.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/forks.h"
#include "executor/control.h"
#include "executor/cpu/call_mutex.h"
#include "executor/cpu/channel.h"
#include "executor/cpu/heaps.h"
#include "executor/cpu/hosts/remotes.h"
#include "executor/cpu/liveness.h"
#include "executor/cpu/membership.h"
#include "executor/cpu/operation.h"
#include "executor/cpu/scratch.h"
#include "executor/cpu/shared_writes.h"
#include "executor/cpu/windows.h"
#include "executor/trace.h"
#include "window/heap.h"
#include "window/segment.h"

namespace pc {

// Bytes of a call up to which copying in costs less than agreeing on placements: one more wait on one host, a round of
// messages between several.  Measured on two cores, 2 hosts: 2 ranks on each gain from 256 KiB on, 4 from 512 KiB.
constexpr int64_t kAlwaysStaged = 4096;
constexpr int64_t kAlwaysStagedBetweenHosts = 256 << 10;

// How long a wait spins, then yields, before it sleeps on a futex.  Zero spinning: ranks share cores.
struct Patience {
  std::chrono::nanoseconds spin{0};
  std::chrono::nanoseconds yield{0};
  std::chrono::nanoseconds awake{0};  // before a blocking call sleeps, if longer
};

// Aligned, so that what every call touches is in the same few cache lines wherever it is allocated.
class alignas(64) Team {
 public:
  // Bytes of shared memory that `size` ranks of one host need.
  static size_t segment_bytes(int32_t size, int64_t scratch_bytes);

  // The ranks of a communicator that is on one host.
  static std::vector<int32_t> all_of(int32_t size);

  // The ranks `here` share the segment, `others` are those on other hosts.  Owns the sockets.  `ucx`: connected with
  // all of them, or null.
  Team(std::shared_ptr<Segment> segment, int32_t rank, int32_t size, int64_t scratch_bytes,
       std::vector<int32_t> world_ranks, std::string name, bool threads, std::vector<int32_t> here,
       const std::vector<Sockets>& others, const std::shared_ptr<UcxWorker>& ucx = nullptr);
  // The channel over which `parent`'s rank `from` sends to rank `to`: a team of two, sender first.
  Team(const Team& parent, int32_t from, int32_t to);
  ~Team();
  Team(const Team&) = delete;

  // Blocks until the call has completed.  Throws CommunicatorFault.
  void run(Operation& op);
  // Runs a call if its peers are about to arrive; else leaves it pending, for run().  Declines at once if the ranks are
  // threads, which need the caller's GIL.  Throws CommunicatorFault.
  Status attempt(Operation& op);
  // Blocks until the call has completed, or leaves it pending at `until`.  Throws CommunicatorFault.
  Status run_until(Operation& op, Clock::time_point until);
  // Advances a call as far as possible without blocking.  Throws CommunicatorFault.
  Status advance(Operation& op);
  // Orders the call among this rank's calls; with windows, enters it, waits for all peers and agrees with them on the
  // plan.  Called by the four above; a caller that runs execute() with its own lanes calls it first.
  // False: pending or failed.
  bool begin(Operation& op);

  // Every rank has attached: watch the peers' processes from now on.
  void watch_peers();
  // The same for ranks on other hosts: see ControlLinks::set_hosts.
  // `numbers`: of each rank's host.
  void watch_hosts(const std::vector<std::string>& hosts, std::vector<std::string> names,
                   const std::vector<int32_t>& numbers);
  void depart();                      // announces that the rank makes no further calls
  bool departed(int32_t rank) const;
  // This rank continues in a communicator without that one, which is told.
  void expel(int32_t rank);
  bool expelled() const;
  void poison(const Abort& why);
  // A fault that was noticed outside calls, by any thread: those in flight look for it themselves, and may complete.
  void report(Fault fault, int32_t culprit, const std::string& text);
  static void note_failure(const std::string& text);  // what ends the program: peers get it with the departure
  static std::string failure();
  std::string failure_of(int32_t rank) const;  // what ended the program of a rank that has departed; "": no error
  void note_loss(const CommunicatorFault& fault) const;  // what failure reports blame a rank for
  static int32_t blamed();  // the world rank that the newest error is due to, unless it is a mismatch; -1: none
  void poll_hosts();  // takes in what ranks on other hosts have reported, as calls do by themselves
  void interrupt(const std::string& where);  // a signal has interrupted this rank there: no rank can continue
  // This rank now waits for a member, here or in the engine: published to ranks that wait for this one.
  void note_wait(int32_t member, Clock::time_point now);
  void note_no_wait();
  bool gone(int32_t member) const {
    return (liveness_ && liveness_->gone(member)) || (remotes_.control && remotes_.control->lost(member));
  }
  bool stopped(int32_t member) const { return liveness_ && liveness_->stopped(member); }
  void require_sound() {
    if (control_.poisoned()) raise();
  }
  [[noreturn]] void raise();
  bool poisoned() const { return control_.poisoned(); }
  // This process is a fork of the process that created the team.
  bool inherited() const { return generation_ != fork_generation(); }
  void require_own() const;

  void add_window(int64_t id, WindowView view);
  void remove_window(int64_t id) { windows_.remove(id); }
  bool has_windows() const { return windows_.any(); }
  // Whether arrays may be where peers can access them.  Between hosts the same on all ranks: has_windows().
  bool may_place() const { return has_windows() || (!spans_hosts_ && Heap::existing() != nullptr); }
  // Whether a call's arrays are used in place if they are in windows; the same on all ranks, whatever their arrays.  In
  // a weighted call hosts that share no edge do not wait for each other, as they would to agree on placements.
  bool uses_windows(Collective collective, int64_t bytes) const {
    const Traits& t = traits(collective);
    if (!spans_hosts_) return t.windows && bytes > kAlwaysStaged;
    return t.windows && !t.weighted && bytes > kAlwaysStagedBetweenHosts;
  }
  Location locate(const void* address, int64_t bytes) const { return windows_.locate(address, bytes); }
  // In a window or in the heap of this process.
  Location place(const void* address, int64_t bytes) {
    const Location at = windows_.locate(address, bytes);
    return at.found() || spans_hosts_ ? at : heaps_.locate(address, bytes);
  }
  // Why arrays in a heap are staged; empty: they are not, or no heap was used.
  std::string heap_problem() const { return heaps_.problem(); }
  // No call is in progress, and none follows: the peers' heaps need not be kept.
  void release_heaps() { heaps_.release(); }

  int32_t rank() const { return members_.rank; }
  int32_t size() const { return members_.size; }
  int32_t local_size() const { return static_cast<int32_t>(members_.here.size()); }  // ranks of this host
  int32_t local_rank() const { return members_.local[static_cast<size_t>(rank())]; }  // this one's index among them
  bool spans_hosts() const { return spans_hosts_; }
  SharedWrites& shared_writes() { return shared_writes_; }  // from any thread
  int64_t capacity() const { return scratch_.bytes(); }
  const std::string& name() const { return name_; }
  std::string describe(const Operation& op) const { return op.plan->fingerprint.describe(rank(), size(), op.step); }
  std::string label(int32_t rank) const { return members_.label(rank); }
  std::string number(int32_t rank) const { return members_.number(rank); }
  const Control& control() const { return control_; }
  const std::shared_ptr<Segment>& segment() const { return segment_; }
  Patience patience;
  TileBytes tile_bytes;
  StepTrace* trace = nullptr;  // where the steps of the next calls are recorded; guarded by one_call
  CallMutex one_call{name_};  // held while a call runs: threads of one rank take turns
  std::atomic<int> queued{0};  // calls on the progress thread: a blocking call must wait for them

  // Called about ten times a second by a blocked call; true makes it give up (a pending signal).
  static std::function<bool()> interrupted;

 private:
  template <class Lanes, bool general> friend class CpuGroup;
  Status execute_general(Operation& op);
  Status proceed(Operation& op, Waiting waiting);
  [[noreturn]] void fail(const Operation& op);
  // From this call on, or from an earlier one in which the fault was made, this rank makes none.
  void give_up(const Operation& op, Fault fault, int32_t culprit, const std::string& text, uint64_t from = 0);
  bool given_up(const Operation& op) const;  // by this rank, or by another one that reported why
  bool peer_gave_up(const Operation& op) const;
  void allocate();
  void announce(const Operation& op);
  [[gnu::cold]] bool await_readers(Operation& op);
  bool handshake(Operation& op);
  bool handshake_across_hosts(Operation& op);
  bool send_placement(Operation& op);
  bool receive_placements(Operation& op, uint8_t& agreed);
  void fill(Operation& op);
  bool check_call(const Operation& op, int32_t peer);
  bool read_locations(const Operation& op, int32_t peer);
  char* address(int32_t local, Location at) const {
    return at.window == Location::kHeap ? heaps_.address(local, at.offset) : windows_.address(local, at);
  }
  // The counter and what it is checked against are written together: the line is polled.
  void publish(const Operation& op, uint64_t value) {
    RankBlock& mine = control_.block(rank());
    mine.latest.store(op.digest, std::memory_order_relaxed);
    mine.counter.store(value, std::memory_order_seq_cst);
    if (mine.waiters.load(std::memory_order_seq_cst) != 0) mine.wake();
  }
  bool await_slow(Operation& op, Goal goal);
  bool reached(const Goal& goal, int turn);
  bool arrived(const Goal& goal) const;
  void nap(const Goal& goal, std::chrono::milliseconds limit);
  bool flush(Operation& op);
  void report_staging(const Operation& op, Fault fault, const std::string& reason);
  bool poll_hosts(const Operation& op);
  bool look_at(const Operation& op, int32_t peer);
  bool compare_neighbours(const Operation& op);
  bool passes_large_messages(const Operation& op);
  Remote* remote(int32_t rank) const { return remotes_.at(rank); }
  Clock::time_point make_way(Clock::time_point start, Clock::time_point now) const;
  bool healthy(Operation& op, const Goal& goal);
  bool is_spared(Operation& op, const Goal& goal);
  bool looks_sound(Operation& op, const Goal& goal);
  bool check_peers(const Operation& op, const Goal& goal);
  bool entered(const Operation& op, int32_t rank) const;
  bool may_still_arrive(int32_t rank);
  void report_timeout(const Operation& op, int32_t peer);
  int32_t awaited_by(const Operation& op, int32_t member) const;
  int32_t hindrance(const Operation& op, int32_t peer) const;
  std::string label_of_call(uint64_t sequence) const;
  bool is_channel() const { return channel_ != nullptr; }
  int64_t channel_number() const { return is_channel() ? channel_->number : -1; }
  // The status block of a member of the communicator.
  RankBlock& home(int32_t member) const { return (is_channel() ? channel_->control : control_).block(member); }
  bool check_fingerprints(const Operation& op);
  void report_mismatch(const Operation& op, int32_t peer);
  void report_stale(const Operation& op, int32_t peer);
  void report_lost(const Operation& op, int32_t peer, bool departed);
  void explain_departure();

  std::shared_ptr<Segment> segment_;
  std::string name_;
  std::shared_ptr<Liveness> liveness_;
  const Clock::time_point made_ = Clock::now();
  Membership members_;
  // What every call touches.
  bool spans_hosts_ = false;
  bool threads_ = false;
  std::atomic<bool> raised_{false};  // a call of this rank has raised the communicator's fault
  const uint32_t generation_ = fork_generation();
  Control control_{};
  Scratch scratch_;
  std::atomic<uint64_t> sequence_{1};  // of the next call; 0 is the initial value of memory.  Only its rank writes it
  std::atomic<bool> left_{false};  // it has departed
  uint64_t failed_ = 0;  // the newest call that this rank gave up
  int32_t first_lost_ = -1;  // the rank that was first seen to be gone: launchers end the others because of it
  uint64_t base_ = 1;
  uint64_t history_ = 0;  // of this rank's calls, see begin()
  bool handshakes_ = false;  // peers may still be in the newest handshake
  SharedWrites shared_writes_;
  std::vector<uint64_t> checked_;  // sequence of the last call in which the peer's entry was checked
  std::shared_ptr<const Plan> announced_[kRing];  // plans whose fingerprint this rank's entry already holds
  std::vector<char*> peer_input_, peer_output_;
  Windows windows_;

  Remotes remotes_;
  std::unique_ptr<Channel> channel_;  // null: this is a communicator
  uint64_t handshake_ = 0, handshake_base_ = 0;  // the newest call in which this rank agreed on placements
  Heaps heaps_{control_, members_};
};

}  // namespace pc
