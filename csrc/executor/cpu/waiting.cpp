// Waiting for a peer: spin, yield, sleep; and the conditions that end a wait.
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <thread>

#include "base/pause.h"
#include "executor/cpu/team.h"

namespace pc {
namespace {

using std::chrono::milliseconds;

constexpr auto kCheckEvery = milliseconds(5);     // how often a waiting rank checks its peers
constexpr int kTightSpins = 64;                      // detects a peer that is just arriving slightly sooner
constexpr int kHopefulSpins = 128;                    // about a microsecond
constexpr int kHopefulLooks = 4;                     // at a socket: as long as a microsecond or two
constexpr int kPumpEvery = 16;
constexpr std::chrono::nanoseconds kCopyNap = std::chrono::microseconds(20);
constexpr int kHopefulYields = 8;                    // about one turn of all ranks, if they share cores
constexpr auto kLongYield = std::chrono::microseconds(500);  // the core was taken by a process that keeps it
constexpr auto kWary = milliseconds(100);             // how long waits then spin longer before they yield
constexpr auto kWarySpin = std::chrono::microseconds(60);    // less than a long yield: two wary jobs calm down
constexpr auto kPatientWithNetworks = milliseconds(3000);
constexpr auto kBystanderGrace = milliseconds(200);  // a rank that ended after its part of a call is not lost
// For a call before one that a rank has given up. A lost host is found out after 2.13 s, and to be named within 2.5 s.
constexpr auto kMercy = milliseconds(300);

void futex_wait(RankBlock& block, uint64_t seen, milliseconds limit) {
  const timespec timeout{0, static_cast<long>(limit.count()) * 1000000L};
  syscall(SYS_futex, block.futex(), FUTEX_WAIT, static_cast<uint32_t>(seen), &timeout, nullptr, 0);
}

std::atomic<Clock::rep> wary_until{0};  // on the steady clock; of all waits of this process

}  // namespace

// Yields, so that a rank or another job that waits for this core gets it: they give it back soon.  A busy process keeps
// it for a time slice, milliseconds: after that has happened, ranks that have a core each first spin.
Clock::time_point Team::make_way(Clock::time_point start, Clock::time_point now) const {
  const bool wary = now.time_since_epoch().count() < wary_until.load(std::memory_order_relaxed);
  if (wary && patience.spin.count() > 0 && now - start < kWarySpin) {
    for (int i = 0; i < 32; ++i) pause();
    return Clock::now();
  }
  sched_yield();
  const auto after = Clock::now();
  if (after - now > kLongYield) wary_until.store((after + kWary).time_since_epoch().count(), std::memory_order_relaxed);
  return after;
}

// Messages of other hosts are received by the thread that waits.  `turn`: a look at the links of all of them takes
// longer than a wait for a peer of this host should.
bool Team::reached(const Goal& goal, int turn) {
  if (goal.staging != nullptr) {
    remotes_.pump();
    return goal.staging->ready(static_cast<int64_t>(goal.target));
  }
  Remote* const from = remote(goal.peer);
  if (from != nullptr) from->progress();
  if (spans_hosts_ && turn % kPumpEvery == 0) remotes_.pump();
  if (goal.sent) return from->sent() >= goal.target;
  return arrived(goal);
}

// All messages of the call have been taken, and will arrive: their memory may be changed.
bool Team::flush(Operation& op) {
  for (int32_t peer = 0; peer < size(); ++peer) {
    const Remote* to = remote(peer);
    if (to != nullptr && to->sent() < to->posted() && !await_slow(op, {peer, to->posted(), true})) return false;
  }
  return true;
}

// Sleeps until the goal may have been reached.
void Team::nap(const Goal& goal, milliseconds limit) {
  if (goal.staging != nullptr) return std::this_thread::sleep_for(kCopyNap);
  if (spans_hosts_ && remotes_.nap(goal.peer, !goal.sent, limit)) return;
  RankBlock& theirs = control_.block(goal.peer);
  theirs.waiters.fetch_add(1, std::memory_order_seq_cst);
  const uint64_t seen = theirs.counter.load(std::memory_order_seq_cst);
  if (seen < goal.target) futex_wait(theirs, seen, limit);
  theirs.waiters.fetch_sub(1, std::memory_order_relaxed);
}

bool Team::await_slow(Operation& op, Goal goal) {
  int turn = 0;
  const std::atomic<uint64_t>& counter = control_.block(goal.peer).counter;
  const bool one_host = !spans_hosts_ && goal.staging == nullptr;
  const auto reached = [&] { return one_host ? counter.load(kAcquire) >= goal.target : this->reached(goal, turn++); };
  const bool other_host = spans_hosts_ && remote(goal.peer) != nullptr;
  if (op.waiting == Waiting::hopes) {
    if (patience.spin.count() == 0) {  // the peer may need this core
      for (int i = 0; i < kHopefulYields; ++i) {
        sched_yield();
        if (reached()) return true;
      }
      return false;
    }
    for (int i = other_host ? kHopefulSpins - kHopefulLooks : 0; i < kHopefulSpins; ++i) {
      if (reached()) return true;
      if (i >= kTightSpins) pause();
    }
    return false;
  }
  const auto start = Clock::now();
  if (op.deadline == Clock::time_point{}) op.deadline = start + std::chrono::duration_cast<Clock::duration>(op.timeout);
  // A call that is resumed continues the wait that it began.
  const std::pair awaited(goal.peer, goal.target);
  if (op.waiting == Waiting::blocks || op.waiting_since == Clock::time_point{} || op.awaited != awaited)
    op.waiting_since = start;
  op.awaited = awaited;
  if (op.waiting == Waiting::declines) {
    if (reached()) return true;
    healthy(op, goal);
    return false;
  }
  // Spinning rarely lasts this long, but if configured to, it checks the deadline and the peers as a sleeper does.
  const auto keeps_waiting = [&](Clock::time_point now) {
    if (now >= op.until) return false;
    return (now - start < kCheckEvery && !control_.poisoned()) || healthy(op, goal);
  };
  for (auto now = start; now - start < patience.spin; now = Clock::now()) {
    for (int i = 0; i < 32; ++i) {
      if (reached()) return true;
      pause();
    }
    if (!keeps_waiting(now)) return false;
  }
  const auto awake = op.caller_waits ? std::max(patience.yield, patience.awake) : patience.yield;
  auto now = start;
  do {
    now = make_way(start, now);
    if (reached()) return true;
    if (!keeps_waiting(now)) return false;
  } while (now - start < awake);

  milliseconds rest(1);
  for (;; rest = std::min(2 * rest, kCheckEvery)) {
    if (spans_hosts_) remotes_.pump();
    const bool sleeps = !reached() && Clock::now() < op.until && healthy(op, goal);
    if (sleeps) nap(goal, rest);
    if (reached()) {
      note_no_wait();
      return !given_up(op);
    }
    if (!sleeps) return false;
  }
}

// Takes in what ranks on other hosts have reported.
void Team::poll_hosts() {
  if (!remotes_.control) return;
  if (const auto abort = remotes_.control->receive()) control_.poison(members_.self(), *abort);
  const auto& blocks = (is_channel() ? channel_->control : control_).blocks;
  for (int32_t r = 0; r < size(); ++r) {
    if (remote(r) == nullptr) continue;
    RankBlock& theirs = home(members_[r]);
    if (remotes_.control->departed(members_[r])) theirs.presence.store(Presence::departed, std::memory_order_release);
    const ControlLinks::Awaited awaited = remotes_.control->awaited(members_[r]);
    const bool waits = awaited.rank >= 0 && static_cast<size_t>(awaited.rank) < blocks.size();
    theirs.awaited.store(awaited.rank, std::memory_order_relaxed);
    theirs.looked.store(waits ? awaited.known.time_since_epoch().count() : 0, std::memory_order_release);
  }
}

// The same during a call; false: a fault.
bool Team::poll_hosts(const Operation& op) {
  if (!remotes_.control) return true;
  poll_hosts();
  if (control_.poisoned()) return false;
  for (int32_t r = 0; r < size(); ++r) {
    if (remote(r) == nullptr) continue;
    if (!is_channel()) remote(r)->progress();  // may announce another call
    if (!remote(r)->violated() && remote(r)->stale() == 0) continue;
    if (remote(r)->stale() != 0) report_stale(op, r);
    else give_up(op, Fault::aborted, members_[r], label(r) + " sent an invalid message during " + describe(op));
    return false;
  }
  return true;
}

// Whether to go on waiting.
bool Team::healthy(Operation& op, const Goal& goal) {
  return (!control_.poisoned() && looks_sound(op, goal)) || is_spared(op, goal);
}

// Whether a call may complete although a rank has given up a later one: as long as the awaited rank is in it.  What a
// rank of another host does is not known; it is waited for as long as it keeps sending.
bool Team::is_spared(Operation& op, const Goal& goal) {
  if (given_up(op)) return false;
  const auto now = Clock::now();
  if (op.spared == Clock::time_point{}) op.spared = now;
  bool continues = now - std::max(op.spared, op.waiting_since) <= kMercy;
  if (continues && goal.staging == nullptr && (goal.sent || !arrived(goal))) {
    poll_hosts();
    const bool left = home(members_[goal.peer]).presence.load(std::memory_order_acquire) == Presence::departed;
    continues = !(left || gone(members_[goal.peer])) || may_still_arrive(goal.peer);
    const RankBlock& theirs = control_.block(goal.peer);
    if (remote(goal.peer) == nullptr)
      continues = continues && entered(op, goal.peer) && theirs.given_up.load(std::memory_order_acquire) == 0;
  }
  if (!continues) failed_ = op.sequence;
  return continues;
}

bool Team::looks_sound(Operation& op, const Goal& goal) {
  if (goal.staging != nullptr && !goal.staging->failure().empty()) {
    report_staging(op, Fault::aborted, goal.staging->failure());
    return false;
  }
  const auto now = Clock::now();
  if (now - op.checked < kCheckEvery) return true;
  op.checked = now;
  if (goal.staging == nullptr) {
    note_wait(members_[goal.peer], now);
    // The peer may wait for this rank, in another call; on one host they would see each other's.
    if (Remote* const peer = remote(goal.peer); peer != nullptr && !is_channel()) peer->announce(op, op.digest);
  }
  if (!poll_hosts(op) || !check_fingerprints(op) || !check_peers(op, goal)) return false;
  if (spans_hosts_ && now - op.waiting_since > kPatientWithNetworks && !passes_large_messages(op)) return false;
  if (now > op.deadline) {
    if (goal.staging == nullptr) report_timeout(op, goal.peer);
    else report_staging(op, Fault::timeout, "a copy has not completed by the call's deadline");
    return false;
  }
  if (op.waiting == Waiting::blocks && interrupted && now - op.waiting_since > milliseconds(50) && interrupted()) {
    give_up(op, Fault::aborted, members_.self(), label(rank()) + " was interrupted in " + describe(op));
    return false;
  }
  return true;
}

// What a rank of another host sent before it departed or ended, which another connection has reported.
bool Team::may_still_arrive(int32_t rank) {
  Remote* const from = remote(rank);
  if (from == nullptr || remotes_.control->silent(members_[rank])) return false;
  if (from->left == Clock::time_point{}) from->left = Clock::now();
  return !from->link().closed() && Clock::now() - from->left < kBystanderGrace;
}

// Whether a peer has reached the awaited counter, or sent the awaited placement.
bool Team::arrived(const Goal& goal) const {
  if (goal.placement) return remote(goal.peer)->placement(goal.target).has_value();
  return control_.block(goal.peer).counter.load(kAcquire) >= goal.target;
}

// Whether it has entered the call, as far as this rank knows.
bool Team::entered(const Operation& op, int32_t rank) const {
  return control_.block(rank).entry[op.sequence % kRing].complete.load(std::memory_order_acquire) >= op.sequence;
}

// False if a peer is gone without having reached the awaited counter.  Of another one that is gone, a rank which needs
// something of it reports that: it is left to them if it has entered the call, and the awaited rank too.
bool Team::check_peers(const Operation& op, const Goal& goal) {
  for (int32_t r = 0; r < size(); ++r) {
    if (r == rank()) continue;
    const bool departed = home(members_[r]).presence.load(std::memory_order_acquire) == Presence::departed;
    const bool lost = departed ? r == goal.peer : gone(members_[r]);
    if (!lost) continue;
    if (!departed && first_lost_ < 0) first_lost_ = r;
    const bool awaited = r == goal.peer && (goal.sent || !arrived(goal));
    if (awaited && may_still_arrive(r)) continue;
    const bool left_to_others = entered(op, r) && goal.staging == nullptr && entered(op, goal.peer);
    if (awaited || (!departed && !left_to_others && Clock::now() - op.waiting_since > kBystanderGrace)) {
      report_lost(op, departed ? r : first_lost_, departed);
      return false;
    }
  }
  return true;
}

void Team::note_wait(int32_t member, Clock::time_point now) {
  RankBlock& mine = home(members_.self());
  mine.awaited.store(member, std::memory_order_relaxed);
  mine.looked.store(now.time_since_epoch().count(), std::memory_order_release);
  if (remotes_.control) remotes_.control->set_awaited({member, now});
}

void Team::note_no_wait() {
  home(members_.self()).looked.store(0, std::memory_order_relaxed);
  if (remotes_.control) remotes_.control->set_awaited({});
}

// Ranks in different calls may wait for steps that the other never does: check what the peers have announced meanwhile.
bool Team::check_fingerprints(const Operation& op) {
  const uint32_t at = op.sequence % kRing;
  for (int32_t r = 0; r < size(); ++r) {
    const RankBlock& theirs = control_.block(r);
    const Entry& entry = theirs.entry[at];
    if (r == rank() || entry.complete.load(std::memory_order_acquire) != op.sequence) continue;
    if (theirs.call[at].load(std::memory_order_acquire) == op.digest) continue;
    if (entry.begun.load(std::memory_order_relaxed) != op.sequence) continue;  // now belongs to a later call
    report_mismatch(op, r);
    return false;
  }
  return true;
}

}  // namespace pc
