// How a rank makes a call: it enters the call, compares it with its peers', and executes its schedule.
#include <algorithm>

#include "executor/cpu/group.h"
#include "executor/cpu/team.h"

namespace pc {
namespace {

// The digest of a sequence of calls, from that of all but the last.
uint64_t extended(uint64_t history, uint64_t call) {
  const uint64_t mixed = (history ^ call) * 0x9E3779B97F4A7C15ull;
  return mixed ^ mixed >> 32;
}

}  // namespace

bool Team::begin(Operation& op) {
  if (!op.begun) {
    op.sequence = sequence_.load(std::memory_order_relaxed);
    sequence_.store(op.sequence + 1, std::memory_order_relaxed);
    op.digest = history_ = extended(history_, op.plan->digest ^ static_cast<uint64_t>(op.step) * 0xD1B54A32D192ED03ull);
    op.span.base = base_;
    op.begun = true;
    if (op.gather != nullptr) op.gather->run();  // before a peer may write to the output, of which x can be a view
  }
  if (!op.agreed) {
    if (handshakes_ && op.sequence - handshake_ >= kRing && !await_readers(op)) return false;
    if ((op.negotiates || op.plan->windows()) && !handshake(op)) return false;
    op.span.tiles = op.plan->tiles;
    const ScheduleView s = op.plan->schedule->view();
    op.span.slot = scratch_.take(op.plan->slot_segments, s.cells() > 0 ? static_cast<uint32_t>(op.plan->tiles) : 0);
    base_ += static_cast<uint64_t>(op.plan->tiles + s.depth() - 1) * static_cast<uint64_t>(s.stride()) + 1;
    op.agreed = true;
    for (int32_t peer = 0; spans_hosts_ && peer < size(); ++peer) {
      Remote* const each = remote(peer);
      if (each == nullptr || each->enter(op.sequence, op.digest, control_.block(rank()))) continue;
      announce(op);
      report_mismatch(op, peer);
      return false;
    }
    return !spans_hosts_ || is_channel() || look_at(op, static_cast<int32_t>(op.sequence % size()));
  }
  return true;
}

// Finds what a peer on another host has sent that no call of this rank expects: each call looks at another peer.
bool Team::look_at(const Operation& op, int32_t peer) {
  Remote* const from = remote(peer);
  if (from == nullptr) return true;
  from->look();
  if (from->stale() == 0) return true;
  announce(op);
  report_stale(op, peer);
  return false;
}

void Team::announce(const Operation& op) {
  RankBlock& mine = control_.block(rank());
  const uint32_t at = op.sequence % kRing;
  Entry& entry = mine.entry[at];
  entry.begun.store(op.sequence, std::memory_order_relaxed);  // the release below carries it
  if (announced_[at] != op.plan) {
    entry.fingerprint = op.plan->fingerprint;
    announced_[at] = op.plan;
  }
  entry.input = op.input_at;
  entry.output = op.output_at;
  entry.step = op.step;
  mine.call[at].store(op.digest, std::memory_order_release);
  entry.complete.store(op.sequence, std::memory_order_release);
}

// Before a call takes the place of the one with the newest handshake: whether all peers have left that, and so have read
// what was announced there.  Ranks that need nothing of each other could otherwise be that far apart.
bool Team::await_readers(Operation& op) {
  CpuGroup<SingleLane> group(*this, op);
  for (const int32_t peer : members_.here)
    if (peer != rank() && !group.await_exit(peer, handshake_base_)) return false;
  handshakes_ = false;
  return true;
}

// Enters the call and waits until all have.  If a rank's placement differs from this rank's, all stage; on one host the
// ranks without an array in a window then are not here.
bool Team::handshake(Operation& op) {
  CpuGroup<SingleLane> group(*this, op);
  const uint8_t placement = op.plan->fingerprint.placement;
  const uint32_t at = op.sequence % kRing;
  if (!op.cursor.entered) {
    control_.block(rank()).entry[at].placed.store(placed(op.sequence, placement, op.fill != nullptr),
                                                  std::memory_order_relaxed);
    handshakes_ = true;
    handshake_ = op.sequence;  // a rank that enters it has left the earlier ones
    handshake_base_ = op.span.base;
    group.enter(op.span.base, true);
  }
  op.cursor.entered = true;
  if (spans_hosts_) return handshake_across_hosts(op);
  bool same_placement = true, fills = false;
  for (int32_t peer = 0; peer < size(); ++peer) {
    if (!group.await(peer, op.span.base)) return false;
    const uint64_t theirs = control_.block(peer).entry[at].placed.load(std::memory_order_relaxed);
    same_placement = same_placement && (theirs & ~kFills) == placed(op.sequence, placement);
    fills = fills || (theirs & kFills) != 0;
  }
  if (!same_placement && op.fallback) {
    op.plan = op.fallback;
    heaps_.meet();
  } else if (op.plan->windows()) {
    for (int32_t peer = 0; peer < size(); ++peer)
      if (peer != rank() && !read_locations(op, peer)) return false;
    if (fills) fill(op);
  }
  return true;
}

// The same on several hosts.  The first rank of each, when all ranks there have entered, tells that of every other one
// the placement of their arrays, and then its own host what all have agreed on, by entering the call a second time.
bool Team::handshake_across_hosts(Operation& op) {
  const int32_t first = members_.here.front();
  if (rank() != first) {
    if (!CpuGroup<SingleLane>(*this, op).await(first, op.span.base + 1)) return false;
  } else {
    uint8_t agreed = 0;
    if (!send_placement(op) || !receive_placements(op, agreed)) return false;
    // Every rank of this host has completed the call for which this was read before.
    control_.block(rank()).agreed.store(agreed, std::memory_order_relaxed);
  }
  const uint8_t agreed = control_.block(first).agreed.load(std::memory_order_relaxed);
  if (agreed != op.plan->fingerprint.placement && op.fallback) op.plan = op.fallback;
  if (!op.plan->windows()) op.fill.reset();
  for (const int32_t peer : members_.here)
    if (peer != rank() && op.plan->windows() && !read_locations(op, peer)) return false;
  fill(op);
  return true;
}

bool Team::send_placement(Operation& op) {
  if (op.placement_sent) return true;
  CpuGroup<SingleLane> group(*this, op);
  op.placement = op.plan->fingerprint.placement;
  for (const int32_t peer : members_.here) {
    if (!group.await(peer, op.span.base)) return false;
    const Entry& entry = control_.block(peer).entry[op.sequence % kRing];
    if (entry.fingerprint.placement != op.placement) op.placement = kPlacementsDiffer;
  }
  for (const int32_t peer : remotes_.first) remote(peer)->send_placement(op, op.digest, op.placement);
  op.placement_sent = true;
  return true;
}

bool Team::receive_placements(Operation& op, uint8_t& agreed) {
  CpuGroup<SingleLane> group(*this, op);
  agreed = op.placement;
  for (const int32_t peer : remotes_.first) {
    if (!group.await_placement(peer)) return false;
    if (*remote(peer)->placement(op.sequence) != agreed) agreed = kPlacementsDiffer;
  }
  return true;
}

// The call's input is copied into a rank's array only after all ranks have made the same call: a call that is
// refused leaves it unchanged.  Having entered the call then means having filled it, on all ranks.
void Team::fill(Operation& op) {
  if (op.fill != nullptr) op.fill->run();
  op.span.base = ++base_;
  publish(op, base_);
}

// Checks what a peer announced on entering, once per call and peer.  The digests are of all calls so far, so that ranks
// which differ in a call in which no rank looks at the other are found out in the next in which one does.
bool Team::check_call(const Operation& op, int32_t peer) {
  const RankBlock& theirs = control_.block(peer);
  const uint32_t at = op.sequence % kRing;
  if (theirs.latest.load(std::memory_order_relaxed) == op.digest) {
    checked_[peer] = op.sequence;
    return true;
  }
  // A different digest is no mismatch if the peer is so far ahead that its entry holds a later call.
  if (theirs.call[at].load(std::memory_order_acquire) != op.digest &&
      theirs.entry[at].begun.load(std::memory_order_relaxed) <= op.sequence) {
    report_mismatch(op, peer);
    return false;
  }
  checked_[peer] = op.sequence;
  return true;
}

// Reads the positions of a peer's arrays in the windows.
bool Team::read_locations(const Operation& op, int32_t peer) {
  const Entry& entry = control_.block(peer).entry[op.sequence % kRing];
  const uint8_t placement = op.plan->fingerprint.placement;
  const int32_t local = members_.local[static_cast<size_t>(peer)];
  bool known = true;
  if ((placement & input_shared) != 0) known = (peer_input_[peer] = address(local, entry.input)) != nullptr;
  if ((placement & output_shared) != 0) known = (peer_output_[peer] = address(local, entry.output)) != nullptr && known;
  if (!known)
    give_up(op, Fault::mismatch, members_[peer],
            label(peer) + " uses a window in " + describe(op) + " whose array " + label(rank()) +
                " has dropped: keep the arrays of comm.empty on all ranks while one uses them");
  return known;
}

// This rank publishes nothing more.
void Team::fail(const Operation& op) {
  remotes_.abandon();
  if (op.begun && op.plan->windows() && op.output_at.window == Location::kHeap) Heap::retire(op.output);
  RankBlock& mine = control_.block(rank());
  if (mine.given_up.load(std::memory_order_relaxed) == 0)
    mine.given_up.store(op.begun ? op.sequence : sequence_.load(), std::memory_order_seq_cst);
  raise();
}

// Whether a rank of this host has given up the call, and may have changed what this rank has read since.
bool Team::peer_gave_up(const Operation& op) const {
  return std::any_of(members_.here.begin(), members_.here.end(), [&](int32_t peer) {
    const uint64_t from = control_.block(peer).given_up.load(std::memory_order_seq_cst);
    return from != 0 && from <= op.sequence;
  });
}

Status Team::advance(Operation& op) { return proceed(op, Waiting::declines); }

void Team::run(Operation& op) { proceed(op, Waiting::blocks); }

Status Team::run_until(Operation& op, Clock::time_point until) {
  op.until = until;
  const Status status = proceed(op, Waiting::limited);
  op.until = Clock::time_point::max();
  return status;
}

Status Team::attempt(Operation& op) { return threads_ ? Status::pending : proceed(op, Waiting::hopes); }

// Of a call across hosts, or of arrays in device memory.
Status Team::execute_general(Operation& op) {
  CpuGroup<SingleLane> group(*this, op);
  Status status = execute(group, op.plan->schedule->view(), op.span, op.cursor);
  if (status == Status::done && spans_hosts_ && !(flush(op) && compare_neighbours(op))) status = group.failure();
  if (op.staging == nullptr) return status;
  if (status == Status::done) op.staging->finish();
  if (!op.staging->failure().empty()) report_staging(op, Fault::aborted, op.staging->failure());
  return status;
}

Status Team::proceed(Operation& op, Waiting waiting) {
  if (op.begun ? given_up(op) : poisoned()) fail(op);
  op.waiting = waiting;
  Status status = Status::pending;
  if (!begin(op)) {
    status = CpuGroup<SingleLane>(*this, op).failure();
  } else if (spans_hosts_ || op.staging != nullptr) {
    status = execute_general(op);
  } else {
    CpuGroup<SingleLane, false> group(*this, op);  // of the plan that the ranks have agreed on
    status = execute(group, op.plan->schedule->view(), op.span, op.cursor);
  }
  // If this rank was stopped meanwhile, the others may have given up, and the data it has read since is undefined. This
  // load comes after those of the peers' arrays, which precede the publication.
  const bool others = control_.header->abort.load(std::memory_order_seq_cst) != 0;
  if (status == Status::failed || (others && (given_up(op) || peer_gave_up(op)))) fail(op);
  return status;
}

}  // namespace pc
