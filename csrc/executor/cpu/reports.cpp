// What a rank reports when a call cannot complete: who is the cause, and what the ranks were doing.
#include <algorithm>
#include <mutex>

#include "executor/cpu/team.h"

namespace pc {
namespace {

// Of a rank that is a process, in any communicator: the newest error about a lost rank, the rank that the newest error
// blames, and what ends the program of this rank.
struct Loss {
  std::mutex mutex;
  std::string text;
  int32_t world_rank = -1;
  Clock::time_point at{};
  int32_t blamed = -1;
  std::string failure;
};

Loss& last_loss() {
  static auto* const loss = new Loss;  // also for teams that end with the process
  return *loss;
}

}  // namespace

// The member for which another one waits; -1: it has not checked lately, as one that waits does.
int32_t Team::awaited_by(const Operation& op, int32_t member) const {
  const auto lately = std::min(std::chrono::duration<double>(1.0), op.timeout / 2);
  const RankBlock& block = home(member);
  const Clock::duration at(block.looked.load(std::memory_order_acquire));
  return Clock::now().time_since_epoch() - at > lately ? -1 : block.awaited.load(std::memory_order_relaxed);
}

// The rank that blocks a peer: the last in the chain of ranks that wait for each other.  A member.
int32_t Team::hindrance(const Operation& op, int32_t peer) const {
  int32_t member = members_[peer];
  for (int32_t hop = 0; hop < size(); ++hop) {
    const int32_t next = awaited_by(op, member);
    if (next < 0) return member;
    member = next;
  }
  return members_[peer];
}

std::string Team::label_of_call(uint64_t sequence) const {
  const std::string number = std::to_string(sequence);
  const std::string of = " of communicator '" + name_ + "'";
  if (!is_channel()) return "call " + number + of;
  return "message " + number + (rank() == 0 ? " to " + label(1) : " from " + label(0)) + of;
}

void Team::report_staging(const Operation& op, Fault fault, const std::string& reason) {
  give_up(op, fault, members_.self(),
          label(rank()) + " could not copy between its GPU and host memory during " + describe(op) + ", " +
              label_of_call(op.sequence) + ": " + reason);
}

void Team::report_timeout(const Operation& op, int32_t peer) {
  std::string missing;
  int32_t first = -1;
  for (int32_t r = 0; r < size(); ++r) {
    if (r == rank() || control_.block(r).counter.load(std::memory_order_acquire) >= op.span.base) continue;
    if (remote(r) != nullptr && r != peer) continue;  // only its messages would tell
    if (first < 0) first = r;
    missing += (missing.empty() ? "" : ", ") + label(r);
  }
  const std::string seconds = number_text(op.timeout.count());
  const int32_t culprit = hindrance(op, first < 0 ? peer : first);
  const std::string who = members_.label_of_member(culprit);
  const std::string lacking = !is_channel() ? "not entered" : rank() == 0 ? "not received" : "not sent";
  std::string text = describe(op) + ", " + label_of_call(op.sequence) + ": ";
  const bool waits = first >= 0 && culprit != members_[first];
  const int32_t place = members_.find(culprit);
  const bool unheard =
      place < size() && remote(place) != nullptr && control_.block(place).counter.load() < op.span.base;
  if (first < 0 && unheard) text += "no message within " + seconds + " s from " + who;
  else if (first < 0)
    text += who + " entered it but made no progress within " + seconds + " s, as seen by " + label(rank());
  else if (waits && remote(first) != nullptr) text += "no message within " + seconds + " s from " + missing;
  else text += lacking + " within " + seconds + " s by " + missing;
  if (waits && control_.block(first).counter.load() < op.span.base) text += "; " + label(first) + " waits for " + who;
  if (first >= 0 && awaited_by(op, members_[first]) == members_.self())
    text += "; " + label(first) + " waits for " + label(rank()) + " in another call";
  if (liveness_ && liveness_->stopped(culprit)) text += "; the process of " + who + " is stopped";
  give_up(op, Fault::timeout, culprit, text);
}

// The ranks may have differed in an earlier call, in which neither looked at the other.
void Team::report_mismatch(const Operation& op, int32_t peer) {
  const RankBlock& own = control_.block(rank());
  const RankBlock& other = control_.block(peer);
  const auto differ = [&](uint64_t sequence) {
    const uint32_t at = sequence % kRing;
    const bool known = other.entry[at].complete.load(std::memory_order_acquire) == sequence &&
                       other.entry[at].begun.load(std::memory_order_relaxed) == sequence;
    return known && other.call[at].load(std::memory_order_relaxed) != own.call[at].load(std::memory_order_relaxed);
  };
  uint64_t sequence = op.sequence - std::min<uint64_t>(op.sequence - 1, kRing - 1);
  while (sequence < op.sequence && !differ(sequence)) ++sequence;
  const Entry& mine = own.entry[sequence % kRing];
  const Entry* theirs = &other.entry[sequence % kRing];
  for (const Entry& each : other.entry)  // a peer that has not reached this call is in an earlier one
    if (theirs->complete < sequence && each.complete > theirs->complete) theirs = &each;
  const auto words = [&](int32_t rank, const Entry& entry) {
    return entry.fingerprint.describe(rank, size(), entry.step);
  };
  std::string text = label_of_call(sequence) + " differs between ranks: " + label(rank()) + " calls " +
                     words(rank(), mine) + "; " + label(peer) + " calls " + words(peer, *theirs);
  Fingerprint moved = theirs->fingerprint;
  moved.placement = mine.fingerprint.placement;  // ranks may differ here
  if (moved.describe(rank(), size(), theirs->step) == words(rank(), mine)) {
    const std::string hidden = mine.fingerprint.hidden_difference(theirs->fingerprint);
    text += "; what differs: " + (hidden.empty() ? "an earlier call" : hidden);
  }
  give_up(op, Fault::mismatch, members_[peer], text, sequence);
}

// A peer's message or announcement for a call that this rank has completed without it.
void Team::report_stale(const Operation& op, int32_t peer) {
  const Remote& from = *remote(peer);
  const Entry& mine = control_.block(rank()).entry[from.stale() % kRing];
  const bool known = mine.complete.load(std::memory_order_relaxed) == from.stale();
  const std::string call = known ? mine.fingerprint.describe(rank(), size(), mine.step) : "something else";
  const Entry& its = control_.block(peer).entry[from.stale() % kRing];
  const bool noted = its.complete.load(std::memory_order_relaxed) == from.stale();
  give_up(op, Fault::mismatch, members_[peer],
          label_of_call(from.stale()) + " differs between ranks: " + label(rank()) + " calls " + call + "; " +
              label(peer) + " calls " +
              (noted ? its.fingerprint.describe(peer, size(), its.step) : from.announcement().describe(peer, size())),
          from.stale());
}

void Team::report_lost(const Operation& op, int32_t peer, bool departed) {
  if (!poll_hosts(op)) return;  // it ended after it had reported another loss
  std::string how = "its process has ended";
  if (departed)
    how = failure_of(peer).empty() ? "it has freed the communicator, or its program has ended"
                                   : "its program has failed: " + failure_of(peer);
  else if (remote(peer) != nullptr) how = remotes_.control->reason(members_[peer]);
  give_up(op, Fault::peer_lost, members_[peer],
          label(peer) + (remotes_.control ? remotes_.control->host(members_[peer]) : "") + " is gone (" + how +
              ") during " + describe(op) + ", " + label_of_call(op.sequence));
}

void Team::raise() {
  const bool before = raised_.exchange(true);
  try {
    control_.raise(before, [this](int32_t rank) { return gone(rank); });
  } catch (const CommunicatorFault& fault) {
    if (fault.fault != Fault::mismatch && !threads_) note_loss(fault);
    throw;
  }
}

void Team::note_failure(const std::string& text) {
  Loss& loss = last_loss();
  const std::lock_guard lock(loss.mutex);
  loss.failure = text;
}

std::string Team::failure() {
  Loss& loss = last_loss();
  const std::lock_guard lock(loss.mutex);
  return loss.failure;
}

std::string Team::failure_of(int32_t rank) const {
  return remote(rank) != nullptr ? remotes_.control->failure(members_[rank]) : home(members_[rank]).failure;
}

int32_t Team::blamed() {
  Loss& loss = last_loss();
  const std::lock_guard lock(loss.mutex);
  return loss.blamed;
}

void Team::note_loss(const CommunicatorFault& fault) const {
  const std::vector<int32_t>& world = is_channel() ? channel_->world : members_.world;
  const auto culprit = static_cast<size_t>(fault.culprit);
  const int32_t world_rank = fault.culprit >= 0 && culprit < world.size() ? world[culprit] : -1;
  Loss& loss = last_loss();
  const std::lock_guard lock(loss.mutex);
  if (world_rank >= 0 && fault.culprit != members_.self()) loss.blamed = world_rank;
  if (fault.fault != Fault::peer_lost) return;
  loss.text = fault.what();
  loss.world_rank = world_rank;
  loss.at = Clock::now();
}

// A rank that leaves because others are lost names them: the rest would take it for the lost one.
void Team::explain_departure() {
  for (int32_t r = 0; r < size(); ++r) {
    if (r == rank() || !gone(members_[r]) || departed(r)) continue;
    const bool here = remote(r) == nullptr;
    const std::string how = here ? "its process has ended" : remotes_.control->reason(members_[r]);
    return report(Fault::peer_lost, members_[r],
                  label(r) + (remotes_.control ? remotes_.control->host(members_[r]) : "") + " is gone (" + how + ")");
  }
  Loss& loss = last_loss();
  const std::lock_guard lock(loss.mutex);
  if (threads_ || loss.at < made_) return;
  const auto at = std::find(members_.world.begin(), members_.world.end(), loss.world_rank) - members_.world.begin();
  if (at < size()) return report(Fault::peer_lost, static_cast<int32_t>(at), loss.text);
  report(Fault::peer_lost, rank(), label(rank()) + " has left, since " + loss.text);
}

}  // namespace pc
