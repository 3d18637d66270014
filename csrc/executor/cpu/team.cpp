#include "executor/cpu/team.h"

#include <unistd.h>

#include <cstring>
#include <utility>

#include "executor/cpu/group.h"

namespace pc {
namespace {

constexpr size_t kPage = 4096;
constexpr int64_t kPairCell = 32768;  // bytes of a tile of send/recv

constexpr size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// What lies where in a communicator's segment.
struct Map {
  explicit Map(int32_t size)
      : blocks(round_up(sizeof(ControlHeader), kPage)),
        pairs(round_up(blocks + size * sizeof(RankBlock), kPage)),
        pair_bytes(round_up(2 * sizeof(RankBlock), 64) + 2 * kPairCell),
        scratch(round_up(pairs + pair_bytes * size * size, kPage)) {}
  size_t blocks, pairs, pair_bytes, scratch;
};

}  // namespace

std::function<bool()> Team::interrupted;

size_t Team::segment_bytes(int32_t size, int64_t scratch_bytes) {
  return Map(size).scratch + static_cast<size_t>(size) * static_cast<size_t>(scratch_bytes);
}

Team::Team(std::shared_ptr<Segment> segment, int32_t rank, int32_t size, int64_t scratch_bytes,
           std::vector<int32_t> world_ranks, std::string name, bool threads)
    : segment_(std::move(segment)),
      rank_(rank),
      size_(size),
      scratch_stride_(scratch_bytes),
      world_ranks_(std::move(world_ranks)),
      name_(std::move(name)),
      threads_(threads) {
  const Map map(size);
  char* base = segment_->data();
  control_ = {reinterpret_cast<ControlHeader*>(base), reinterpret_cast<RankBlock*>(base + map.blocks)};
  scratch_ = base + map.scratch;
  for (auto& guard : guard_) guard.assign(size, 0);
  met_.assign(size, 0);
  peer_input_.assign(size, nullptr);
  peer_output_.assign(size, nullptr);
  for (int32_t r = 0; r < size; ++r) members_.push_back(r);
  RankBlock& mine = control_.blocks[rank];
  mine.pid.store(getpid(), std::memory_order_relaxed);
  mine.pid_namespace.store(pid_namespace(), std::memory_order_relaxed);
  mine.presence.store(static_cast<uint32_t>(Presence::here), std::memory_order_release);
}

Team::Team(const Team& parent, int32_t from, int32_t to)
    : patience(parent.patience),
      tile_bytes(parent.tile_bytes),
      segment_(parent.segment_),
      rank_(parent.rank_ == from ? 0 : 1),
      size_(2),
      scratch_stride_(2 * kPairCell),
      world_ranks_{parent.world_ranks_[from], parent.world_ranks_[to]},
      name_(parent.name_),
      threads_(parent.threads_),
      liveness_(parent.liveness_),
      members_{from, to} {
  const Map map(parent.size_);
  char* base = segment_->data() + map.pairs + map.pair_bytes * (static_cast<size_t>(from) * parent.size_ + to);
  control_ = {parent.control_.header, reinterpret_cast<RankBlock*>(base)};
  scratch_ = base + round_up(2 * sizeof(RankBlock), 64);
  for (auto& guard : guard_) guard.assign(2, 0);
  met_.assign(2, 0);
  peer_input_.assign(2, nullptr);
  peer_output_.assign(2, nullptr);
  parent_blocks_ = parent.control_.blocks;
}

// Nobody is left here who could make a call: as good as a goodbye.
Team::~Team() {
  if (parent_blocks_ == nullptr && !inherited()) depart();
}

void Team::watch_peers() {
  std::vector<int32_t> pids(size_, 0);
  for (int32_t r = 0; r < size_; ++r) {
    const RankBlock& block = control_.blocks[r];
    // In a container of its own a peer's number is nobody's here, or somebody else's.
    const bool known = block.pid_namespace.load(std::memory_order_relaxed) == pid_namespace();
    if (r != rank_ && !threads_ && known) pids[r] = block.pid.load(std::memory_order_relaxed);
  }
  liveness_ = std::make_shared<Liveness>(pids);
}

void Team::require_own() const {
  if (inherited())
    throw CommunicatorFault(
        Fault::aborted, -1,
        "communicator '" + name_ + "' belongs to the process that this one was forked from; a child cannot use it");
}

void Team::depart() {
  control_.blocks[rank_].presence.store(static_cast<uint32_t>(Presence::departed), std::memory_order_release);
}

void Team::poison(Fault fault, int32_t culprit, const std::string& text) {
  control_.poison(size_, fault, culprit, text);
}

void Team::interrupt(const std::string& where) {
  poison(Fault::aborted, members_[rank_], label(rank_) + " was interrupted in " + where);
}

void Team::add_window(int64_t id, WindowView view, int64_t bytes) {
  const std::lock_guard lock(windows_mutex_);
  has_windows_ = true;
  windows_[id] = {view, bytes};
  window_at_[view.base + rank_ * view.stride] = id;
}

void Team::remove_window(int64_t id) {
  const std::lock_guard lock(windows_mutex_);
  const auto found = windows_.find(id);
  if (found == windows_.end()) return;
  window_at_.erase(found->second.view.base + rank_ * found->second.view.stride);
  windows_.erase(found);
}

Location Team::locate(const void* address, int64_t bytes) const {
  const std::lock_guard lock(windows_mutex_);
  const char* at = static_cast<const char*>(address);
  auto next = window_at_.upper_bound(at);
  if (next == window_at_.begin()) return {};
  const auto& [begin, id] = *--next;
  if (at + bytes > begin + windows_.at(id).bytes) return {};
  return {id, at - begin};
}

char* Team::peer_address(int32_t peer, Location at) const {
  const std::lock_guard lock(windows_mutex_);
  const auto found = windows_.find(at.window);
  if (found == windows_.end()) return nullptr;
  return found->second.view.base + peer * found->second.view.stride + at.offset;
}

bool Team::begin(Operation& op) {
  if (!op.begun) {
    op.sequence = sequence_++;
    op.span.base = base_;
    op.begun = true;
  }
  if (!op.agreed) {
    if ((op.negotiates || op.plan->windows()) && !greet(op)) return false;
    op.span.tiles = op.plan->tiles;
    op.span.slot = slot_ & 1u;
    const ScheduleView s = op.plan->schedule->view();
    base_ += static_cast<uint64_t>(op.plan->tiles) * static_cast<uint64_t>(s.stride()) + 1;
    if (s.cells() > 0) slot_ += static_cast<uint32_t>(op.plan->tiles);
    op.agreed = true;
  }
  return true;
}

void Team::announce(const Operation& op) {
  RankBlock& mine = control_.blocks[rank_];
  const uint32_t at = op.sequence % kRing;
  mine.entry[at] = {op.plan->fingerprint, op.input_at, op.output_at};
  mine.digest[at].store(op.sequence << 32 | op.plan->digest, std::memory_order_release);
}

// Enters the call and waits until all have.  If somebody's arrays do not lie where this rank's do, all stage.
bool Team::greet(Operation& op) {
  CpuGroup<SingleLane> group(*this, op);
  if (!op.cursor.entered) group.enter(op.span.base, true);
  op.cursor.entered = true;
  const uint8_t placement = op.plan->fingerprint.placement;
  bool alike = true;
  for (int32_t peer = 0; peer < size_; ++peer) {
    if (!group.await(peer, op.span.base)) return false;
    alike = alike && control_.blocks[peer].entry[op.sequence % kRing].fingerprint.placement == placement;
  }
  if (!alike && op.fallback) {
    op.plan = op.fallback;
  } else if (op.plan->windows()) {
    for (int32_t peer = 0; peer < size_; ++peer)
      if (peer != rank_ && !read_locations(op, peer)) return false;
  }
  return true;
}

// Reads what a peer said on entering: once a call and peer.  No call has a part of the ranks that meets none of the
// others, so this is enough: whoever calls something else is met in that very call.
bool Team::meet(const Operation& op, int32_t peer) {
  const uint64_t said = control_.blocks[peer].digest[op.sequence % kRing].load(std::memory_order_acquire);
  const auto ahead = static_cast<int32_t>(static_cast<uint32_t>(said >> 32) - static_cast<uint32_t>(op.sequence));
  if (ahead < 0 || (ahead == 0 && static_cast<uint32_t>(said) != op.plan->digest)) {
    report_mismatch(op, peer, op.sequence);
    return false;
  }
  met_[peer] = op.sequence;
  return true;
}

// Where a peer's arrays lie in the windows.
bool Team::read_locations(const Operation& op, int32_t peer) {
  const Entry& entry = control_.blocks[peer].entry[op.sequence % kRing];
  const uint8_t placement = op.plan->fingerprint.placement;
  bool known = true;
  if ((placement & input_shared) != 0) known = (peer_input_[peer] = peer_address(peer, entry.input)) != nullptr;
  if ((placement & output_shared) != 0)
    known = (peer_output_[peer] = peer_address(peer, entry.output)) != nullptr && known;
  if (!known)
    poison(Fault::mismatch, members_[peer],
           label(peer) + " uses a window in " + op.plan->fingerprint.describe() + " whose array " + label(rank_) +
               " has dropped: keep the arrays of comm.empty on all ranks while one uses them");
  return known;
}

void Team::raise() {
  const bool before = std::exchange(told_, true);
  control_.raise(before);
}

Status Team::advance(Operation& op) { return proceed(op, Waiting::declines); }

void Team::run(Operation& op) { proceed(op, Waiting::blocks); }

Status Team::attempt(Operation& op) { return threads_ ? Status::pending : proceed(op, Waiting::hopes); }

Status Team::proceed(Operation& op, Waiting waiting) {
  require_sound();
  op.waiting = waiting;
  Status status = Status::done;
  if (!begin(op)) {
    status = CpuGroup<SingleLane>(*this, op).failure();
  } else {
    CpuGroup<SingleLane> group(*this, op);
    status = execute(group, op.plan->schedule->view(), op.span, op.cursor);
  }
  if (status == Status::failed) raise();
  return status;
}

std::string Team::number(int32_t rank) const {
  const int32_t world = world_ranks_[rank];
  const int32_t member = members_[rank];
  const std::string text = std::to_string(member);
  return world == member ? text : text + " (world rank " + std::to_string(world) + ")";
}

}  // namespace pc
