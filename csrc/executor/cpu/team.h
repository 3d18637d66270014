// One rank's part of a communicator: the state that calls share, and how a call is run.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/forks.h"
#include "executor/control.h"
#include "executor/copy.h"
#include "executor/cpu/call_mutex.h"
#include "executor/cpu/hosts/control_links.h"
#include "executor/cpu/hosts/remote.h"
#include "executor/cpu/liveness.h"
#include "executor/cpu/shared_writes.h"
#include "executor/cpu/staging.h"
#include "executor/execute.h"
#include "executor/plan.h"
#include "executor/trace.h"
#include "window/segment.h"

namespace pc {

class UcxWorker;

using Clock = std::chrono::steady_clock;

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

// A window that this rank has mapped: the part of each rank of this host is `stride` bytes after the previous one.
struct WindowView {
  char* base;
  int64_t stride;
  int64_t bytes;  // of a rank's part
};

// The sockets to a rank on another host: of collectives (-1 if UCX carries them), of control messages, and of messages
// from rank to rank.
struct Sockets {
  int32_t rank;
  int data, control, messages;
};

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
  bool negotiates = false;  // the communicator has windows: agree with the peers on the plan
  uint8_t placement = 0;    // of the ranks of this host, when it has been sent to other hosts
  bool placement_sent = false;
  bool begun = false;
  bool agreed = false;
  bool caller_waits = false;  // in a blocking call: nothing else in this thread needs its core
  Waiting waiting = Waiting::blocks;
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
  // plan.  Called by the three above; a caller that runs execute() with its own lanes calls it first.
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
  void poll_hosts();                      // to ranks on other hosts, which calls do by themselves
  void interrupt(const std::string& where);  // a signal has interrupted this rank there: no rank can continue
  // This rank now waits for a member, here or in the engine: published to ranks that wait for this one.
  void note_wait(int32_t member, Clock::time_point now);
  void note_no_wait();
  bool gone(int32_t rank) const { return (liveness_ && liveness_->gone(rank)) || (links_ && links_->lost(rank)); }
  bool stopped(int32_t rank) const { return liveness_ && liveness_->stopped(rank); }
  void require_sound() {
    if (control_.poisoned()) raise();
  }
  [[noreturn]] void raise();
  bool poisoned() const { return control_.poisoned(); }
  // This process is a fork of the process that created the team.
  bool inherited() const { return generation_ != fork_generation(); }
  void require_own() const;

  void add_window(int64_t id, WindowView view);
  void remove_window(int64_t id);
  bool has_windows() const { return has_windows_.load(std::memory_order_relaxed); }  // or had: the same on all ranks
  // Whether a call's arrays are used in place if they are in windows; the same on all ranks, whatever their arrays.  In
  // a weighted call hosts that share no edge do not wait for each other, as they would to agree on placements.
  bool uses_windows(Collective collective, int64_t bytes) const {
    const Traits& t = traits(collective);
    if (!spans_hosts_) return t.windows && bytes > kAlwaysStaged;
    return t.windows && !t.weighted && bytes > kAlwaysStagedBetweenHosts;
  }
  // The position of an address range in a window of this communicator; window -1: in none.
  Location locate(const void* address, int64_t bytes) const;

  int32_t rank() const { return rank_; }
  int32_t size() const { return size_; }
  int32_t local_size() const { return static_cast<int32_t>(here_.size()); }  // ranks of this host
  int32_t local_rank() const { return local_[static_cast<size_t>(rank_)]; }  // this one's index among them
  bool spans_hosts() const { return spans_hosts_; }
  SharedWrites& shared_writes() { return shared_writes_; }  // from any thread
  int64_t capacity() const { return scratch_stride_; }
  const std::string& name() const { return name_; }
  // For messages: "rank 1", "rank 1 (world rank 3)"; and the same without "rank".
  std::string describe(const Operation& op) const { return op.plan->fingerprint.describe(rank_, size_, op.step); }
  std::string label(int32_t rank) const { return "rank " + number(rank); }
  std::string number(int32_t rank) const;
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
  void connect(const std::vector<Sockets>& others, const std::shared_ptr<UcxWorker>& ucx);
  void abandon();
  void connect_pair(const Team& parent, int32_t peer);
  void allocate();
  void announce(const Operation& op);
  bool handshake(Operation& op);
  bool handshake_across_hosts(Operation& op);
  bool send_placement(Operation& op);
  bool receive_placements(Operation& op, uint8_t& agreed);
  void fill(Operation& op);
  bool check_call(const Operation& op, int32_t peer);
  bool read_locations(const Operation& op, int32_t peer);
  // The counter and what it is checked against are written together: the line is polled.
  void publish(const Operation& op, uint64_t value) {
    RankBlock& mine = control_.block(rank_);
    mine.latest.store(op.digest, std::memory_order_relaxed);
    mine.counter.store(value, std::memory_order_seq_cst);
    if (mine.waiters.load(std::memory_order_seq_cst) != 0) mine.wake();
  }
  bool await_slow(Operation& op, Goal goal);
  bool reached(const Goal& goal, int turn);
  bool arrived(const Goal& goal) const;
  bool pump();
  bool nap_on_links(const Goal& goal, std::chrono::milliseconds limit);
  void nap(const Goal& goal, std::chrono::milliseconds limit);
  bool flush(Operation& op);
  void report_staging(const Operation& op, Fault fault, const std::string& reason);
  bool poll_hosts(const Operation& op);
  bool look_at(const Operation& op, int32_t peer);
  bool compare_neighbours(const Operation& op);
  bool passes_large_messages(const Operation& op);
  Remote* remote(int32_t rank) const { return remotes_.empty() ? nullptr : remotes_[rank].get(); }
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
  std::string label_of_member(int32_t member) const;
  std::string label_of_call(uint64_t sequence) const;
  // A rank's status block; for a pair channel, that of its communicator.
  RankBlock& home(int32_t member) const { return (is_pair_ ? parent_control_ : control_).block(member); }
  bool check_fingerprints(const Operation& op);
  void report_mismatch(const Operation& op, int32_t peer);
  void report_stale(const Operation& op, int32_t peer);
  void report_lost(const Operation& op, int32_t peer, bool departed);
  void explain_departure();
  char* scratch(int32_t rank, uint32_t segment) const { return scratch_of_[rank] + ring_.offset(segment); }
  // For each peer, the counter that it reaches when it has read this rank's segment of scratch; 0: it has.  For one on
  // another host, the number of messages sent to it up to the last from that segment.
  uint64_t* readers_of(uint32_t segment) { return &readers_[size_t{segment} * static_cast<size_t>(size_)]; }

  std::shared_ptr<Segment> segment_;
  int32_t rank_, size_;
  bool spans_hosts_ = false;
  Control control_{};
  std::vector<char*> scratch_of_;  // by rank; null on other hosts
  int64_t scratch_stride_ = 0;
  std::vector<int32_t> world_ranks_;
  std::string name_;
  bool threads_ = false;
  const Clock::time_point made_ = Clock::now();
  std::shared_ptr<Liveness> liveness_;
  std::vector<int32_t> members_;  // this team's ranks, numbered as in the communicator (two for a pair channel)
  bool is_pair_ = false;
  int64_t channel_ = -1;  // of a pair channel, its number in the communicator

  const uint32_t generation_ = fork_generation();
  std::atomic<bool> raised_{false};  // a call of this rank has raised the communicator's fault
  std::atomic<uint64_t> sequence_{1};  // of the next call; 0 is the initial value of memory.  Only its rank writes it
  uint64_t failed_ = 0;  // the newest call that this rank gave up
  int32_t first_lost_ = -1;  // the rank that was first seen to be gone: launchers end the others because of it
  uint64_t base_ = 1;
  ScratchRing ring_;
  SharedWrites shared_writes_;
  uint32_t position_ = 0;  // in the ring, of the next tile
  std::vector<uint64_t> readers_;  // see readers_of()
  std::vector<uint64_t> checked_;  // sequence of the last call in which the peer's entry was checked
  std::shared_ptr<const Plan> announced_[kRing];  // plans whose fingerprint this rank's entry already holds
  std::vector<char*> peer_input_, peer_output_;
  char* peer_address(int32_t peer, Location at) const;
  char* part_of(const WindowView& view, int32_t rank) const {
    return view.base + local_[static_cast<size_t>(rank)] * view.stride;
  }
  std::map<int64_t, WindowView> windows_;  // by id, the same on all ranks
  std::map<const char*, int64_t> window_at_;  // by the start of this rank's part
  std::vector<int32_t> local_;  // by rank: its index among those of this host; -1: on another one
  std::atomic<bool> has_windows_{false};
  mutable std::mutex windows_mutex_;

  // Of several hosts, and of channels.  After what every call touches.
  Control parent_control_;  // for a pair channel: that of its communicator
  std::vector<int32_t> parent_world_ranks_;  // likewise
  std::vector<int32_t> here_;  // the ranks of this host
  std::vector<int32_t> first_elsewhere_;  // the first rank of each other host
  std::vector<std::shared_ptr<Remote>> remotes_;  // by rank: null for those of this host; empty: there are no others
  std::vector<std::shared_ptr<Remote>> parent_remotes_;  // own the blocks of parent_control_
  std::shared_ptr<ControlLinks> links_;
  std::vector<Sockets> sockets_;  // to ranks on other hosts
  std::vector<std::unique_ptr<Link>> messages_;  // own those of channels
  std::unique_ptr<RankBlock> own_block_;  // of a pair channel to another host
};

}  // namespace pc
