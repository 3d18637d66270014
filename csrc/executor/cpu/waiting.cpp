// Waiting for a peer: spin, yield, sleep; and what ends a wait that should not go on.
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>
#include <thread>

#include "base/pause.h"
#include "executor/cpu/team.h"

namespace pc {
namespace {

using std::chrono::milliseconds;

constexpr auto kCheckEvery = milliseconds(5);     // how often a waiting rank looks after its peers
constexpr int kTightSpins = 64;                      // a peer that is just arriving is seen a little sooner
constexpr int kHopefulSpins = 128;                    // about a microsecond
constexpr int kHopefulYields = 8;                    // about a turn of all ranks, where they share cores
constexpr auto kBystanderGrace = milliseconds(200);  // a rank that ended after its part of a call is no loss

// The futex is the counter's low half (x86-64 and AArch64 are little-endian).
uint32_t* futex_word(RankBlock& block) { return reinterpret_cast<uint32_t*>(&block.counter); }

void futex_wait(RankBlock& block, uint64_t seen, milliseconds limit) {
  const timespec timeout{0, static_cast<long>(limit.count()) * 1000000L};
  syscall(SYS_futex, futex_word(block), FUTEX_WAIT, static_cast<uint32_t>(seen), &timeout, nullptr, 0);
}

void futex_wake(RankBlock& block) { syscall(SYS_futex, futex_word(block), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }

}  // namespace

void Team::publish(uint64_t value) {
  RankBlock& mine = control_.blocks[rank_];
  mine.counter.store(value, std::memory_order_seq_cst);
  if (mine.waiters.load(std::memory_order_seq_cst) != 0) futex_wake(mine);
}

bool Team::await_slow(Operation& op, int32_t peer, uint64_t target) {
  RankBlock& theirs = control_.blocks[peer];
  const auto reached = [&] { return theirs.counter.load(kAcquire) >= target; };
  if (op.waiting == Waiting::hopes) {
    if (patience.spin.count() == 0) {  // the peer may want this very core
      for (int i = 0; i < kHopefulYields; ++i) {
        sched_yield();
        if (reached()) return true;
      }
      return false;
    }
    for (int i = 0; i < kHopefulSpins; ++i) {
      if (reached()) return true;
      if (i >= kTightSpins) pause();
    }
    return false;
  }
  const auto start = Clock::now();
  if (op.deadline == Clock::time_point{}) op.deadline = start + std::chrono::duration_cast<Clock::duration>(op.timeout);
  if (op.waiting == Waiting::declines) {
    if (op.waiting_since == Clock::time_point{}) op.waiting_since = start;
    healthy(op, peer, target);
    return false;
  }
  op.waiting_since = start;
  while (Clock::now() - start < patience.spin) {
    for (int i = 0; i < 32; ++i) {
      if (reached()) return true;
      pause();
    }
  }
  do {
    sched_yield();
    if (reached()) return true;
    if (control_.poisoned()) return false;
  } while (Clock::now() - start < patience.yield);

  milliseconds nap(1);
  for (;; nap = std::min(2 * nap, kCheckEvery)) {
    theirs.waiters.fetch_add(1, std::memory_order_seq_cst);
    const uint64_t seen = theirs.counter.load(std::memory_order_seq_cst);
    const bool sleeps = seen < target && healthy(op, peer, target);
    if (sleeps) futex_wait(theirs, seen, nap);
    theirs.waiters.fetch_sub(1, std::memory_order_relaxed);
    if (reached()) return !control_.poisoned();
    if (!sleeps) return false;
  }
}

bool Team::healthy(Operation& op, int32_t peer, uint64_t target) {
  if (control_.poisoned()) return false;
  const auto now = Clock::now();
  if (now - op.checked < kCheckEvery) return true;
  op.checked = now;
  if (!check_fingerprints(op) || !check_peers(op, peer, target)) return false;
  if (now > op.deadline) {
    report_timeout(op, peer);
    return false;
  }
  if (op.waiting == Waiting::blocks && interrupted && now - op.waiting_since > milliseconds(50) && interrupted()) {
    interrupt(op.plan->fingerprint.describe());
    return false;
  }
  return true;
}

// False if a peer is gone without having done what is waited for.
bool Team::check_peers(const Operation& op, int32_t peer, uint64_t target) {
  for (int32_t r = 0; r < size_; ++r) {
    if (r == rank_) continue;
    const RankBlock& home = parent_blocks_ != nullptr ? parent_blocks_[members_[r]] : control_.blocks[r];
    const bool departed = home.presence.load(std::memory_order_acquire) == static_cast<uint32_t>(Presence::departed);
    const bool lost = departed ? r == peer : liveness_ && liveness_->gone(members_[r]);
    if (!lost) continue;
    const bool awaited = r == peer && control_.blocks[r].counter.load(std::memory_order_acquire) < target;
    if (awaited || (!departed && Clock::now() - op.waiting_since > kBystanderGrace)) {
      report_lost(op, r, departed);
      return false;
    }
  }
  return true;
}

void Team::report_timeout(const Operation& op, int32_t peer) {
  std::string missing;
  int32_t first = -1;
  for (int32_t r = 0; r < size_; ++r) {
    if (control_.blocks[r].counter.load(std::memory_order_acquire) >= op.span.base) continue;
    if (first < 0) first = r;
    missing += (missing.empty() ? "" : ", ") + label(r);
  }
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%g", op.timeout.count());
  const std::string call =
      op.plan->fingerprint.describe() + ", call " + std::to_string(op.sequence) + " of communicator '" + name_ + "'";
  if (first < 0)
    poison(Fault::timeout, members_[peer],
           call + ": " + label(peer) + " entered it but did not get on within " + seconds + " s, as seen by " +
               label(rank_));
  else poison(Fault::timeout, members_[first], call + ": not entered within " + seconds + " s by " + missing);
}

// Ranks in different calls may wait for steps that the other never does: look at what the peers say meanwhile.
bool Team::check_fingerprints(const Operation& op) {
  for (int32_t r = 0; r < size_; ++r) {
    const uint64_t said = control_.blocks[r].digest[op.sequence % kRing].load(std::memory_order_acquire);
    if (said >> 32 != (op.sequence & 0xffffffffu) || static_cast<uint32_t>(said) == op.plan->digest) continue;
    if (r == rank_) continue;  // not announced yet
    report_mismatch(op, r, op.sequence);
    return false;
  }
  return true;
}

void Team::report_mismatch(const Operation& op, int32_t peer, uint64_t sequence) {
  const auto what = [&](int32_t rank) {
    const Entry& entry = control_.blocks[rank].entry[sequence % kRing];
    return label(rank) + " calls " +
           (rank == rank_ && sequence == op.sequence ? op.plan->fingerprint.describe() : entry.fingerprint.describe());
  };
  poison(Fault::mismatch, members_[peer],
         "call " + std::to_string(sequence) + " of communicator '" + name_ + "' differs between ranks: " + what(rank_) +
             "; " + what(peer));
}

void Team::report_lost(const Operation& op, int32_t peer, bool departed) {
  const char* how = departed ? "it has freed the communicator, or its program has ended" : "its process has ended";
  poison(Fault::peer_lost, members_[peer],
         label(peer) + " is gone (" + how + ") during " + op.plan->fingerprint.describe() + ", call " +
             std::to_string(op.sequence) + " of communicator '" + name_ + "'");
}

void Control::poison(int32_t size, Fault fault, int32_t culprit, const std::string& text) {
  uint32_t sound = 0;
  if (!header->abort.compare_exchange_strong(sound, 1)) return;
  header->fault = fault;
  header->culprit = culprit;
  const size_t length = std::min(text.size(), sizeof header->text - 1);
  text.copy(header->text, length);
  header->text[length] = '\0';
  header->abort.store(2, std::memory_order_release);
  for (int32_t r = 0; r < size; ++r) futex_wake(blocks[r]);
}

void Control::raise(bool told_before) const {
  // The writer is a few instructions away from done, unless it died there.
  for (int i = 0; i < 1000 && header->abort.load(std::memory_order_acquire) == 1; ++i)
    std::this_thread::sleep_for(milliseconds(1));
  if (header->abort.load(std::memory_order_acquire) != 2)
    throw CommunicatorFault(Fault::aborted, -1, "the communicator was given up by a rank that then ended");
  const std::string text = header->text;
  throw CommunicatorFault(header->fault, header->culprit,
                          told_before ? "the communicator was given up: " + text : text);
}

}  // namespace pc
