#include "executor/cpu/team.h"

#include <unistd.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/checked.h"
#include "executor/cpu/segment_map.h"

namespace pc {
namespace {

constexpr int32_t kMostRanks = 1 << 14;  // of one host; SegmentMap fits 64 bits

void require(bool condition, const std::string& what) {
  if (!condition) throw InvalidArgument(what);
}

int32_t checked_size(int32_t size) {
  require(size >= 1 && size <= kMostRanks,
          "a communicator on one host has 1 to " + std::to_string(kMostRanks) + " ranks, not " + std::to_string(size));
  return size;
}

int32_t checked_rank(int32_t rank, int32_t size) {
  require(rank >= 0 && rank < size,
          "rank " + std::to_string(rank) + " is not in a communicator of " + std::to_string(size));
  return rank;
}

Membership members_of(int32_t rank, int32_t size, std::vector<int32_t> world, std::vector<int32_t> here) {
  std::vector<int32_t> local(static_cast<size_t>(checked_size(size)), -1);
  for (size_t i = 0; i < here.size(); ++i) local[checked_rank(here[i], size)] = static_cast<int32_t>(i);
  return {Team::all_of(size), std::move(world), std::move(here), std::move(local), checked_rank(rank, size), size};
}

Membership pair_of(const Membership& communicator, int32_t from, int32_t to) {
  const auto world = [&](int32_t r) { return communicator.world[checked_rank(r, communicator.size)]; };
  return {{from, to}, {world(from), world(to)}, {}, {}, communicator.rank == from ? 0 : 1, 2};
}

}  // namespace

std::function<bool()> Team::interrupted;

std::vector<int32_t> Team::all_of(int32_t size) {
  std::vector<int32_t> ranks(static_cast<size_t>(checked_size(size)));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

size_t Team::segment_bytes(int32_t size, int64_t scratch_bytes) {
  const size_t scratch = SegmentMap(checked_size(size)).scratch;
  require(scratch_bytes >= 0, "scratch of " + std::to_string(scratch_bytes) + " bytes");
  const auto all =
      checked_mul<size_t>(static_cast<size_t>(size), static_cast<size_t>(scratch_bytes), "bytes of scratch");
  return checked_add(scratch, all, "bytes of a communicator");
}

Team::Team(std::shared_ptr<Segment> segment, int32_t rank, int32_t size, int64_t scratch_bytes,
           std::vector<int32_t> world_ranks, std::string name, bool threads, std::vector<int32_t> here,
           const std::vector<Sockets>& others, const std::shared_ptr<UcxWorker>& ucx)
    : segment_(std::move(segment)),
      name_(std::move(name)),
      members_(members_of(rank, size, std::move(world_ranks), std::move(here))),
      spans_hosts_(!others.empty()),
      threads_(threads),
      scratch_(scratch_bytes, size) {
  const std::vector<int32_t>& local = members_.here;
  const auto count = static_cast<int32_t>(local.size());
  remotes_.connect(size, local, others, ucx);
  require(count + static_cast<int32_t>(others.size()) == size && std::count(local.begin(), local.end(), rank) == 1,
          "every rank is either on this host, as this one is, or on another one");
  require(segment_ != nullptr && segment_->bytes() >= segment_bytes(count, scratch_bytes),
          "the segment is smaller than " + std::to_string(count) + " ranks with " + std::to_string(scratch_bytes) +
              " bytes of scratch each need");
  require(members_.world.size() == static_cast<size_t>(size), "world_ranks: one number for each of " +
                                                                  std::to_string(size) + " ranks, not " +
                                                                  std::to_string(members_.world.size()));
  const SegmentMap map(count);
  char* base = segment_->data();
  auto* const blocks = reinterpret_cast<RankBlock*>(base + map.blocks);
  control_.header = reinterpret_cast<ControlHeader*>(base);
  control_.blocks.assign(size, nullptr);
  for (int32_t i = 0; i < count; ++i) {
    control_.blocks[local[i]] = blocks + i;
    scratch_.place(local[i], base + map.scratch + i * scratch_bytes);
  }
  if (count == size) control_.first = blocks;
  for (const Sockets& each : others) control_.blocks[each.rank] = &remote(each.rank)->block();
  allocate();
  RankBlock& mine = control_.block(rank);
  mine.pid.store(getpid(), std::memory_order_relaxed);
  mine.pid_namespace.store(pid_namespace(), std::memory_order_relaxed);
  mine.started.store(own_start_time(), std::memory_order_relaxed);
  mine.presence.store(Presence::here, std::memory_order_release);
}

void Team::allocate() {
  checked_.assign(size(), 0);
  peer_input_.assign(size(), nullptr);
  peer_output_.assign(size(), nullptr);
}

Team::Team(const Team& parent, int32_t from, int32_t to)
    : patience(parent.patience),
      tile_bytes(parent.tile_bytes),
      segment_(parent.segment_),
      name_(parent.name_),
      liveness_(parent.liveness_),
      members_(pair_of(parent.members_, from, to)),
      threads_(parent.threads_),
      scratch_(SegmentMap::pair_scratch(std::max(1, parent.local_size())), 2),
      channel_(new Channel{
          int64_t{from} * parent.size() + to, parent.control_, parent.members_.world, parent.remotes_.all(), {}}) {
  require(!parent.is_channel(), "a channel between two ranks cannot have channels");
  require(from != to && (parent.rank() == from || parent.rank() == to),
          "rank " + std::to_string(parent.rank()) + " has no channel from rank " + std::to_string(from) + " to rank " +
              std::to_string(to));
  remotes_.control = parent.remotes_.control;
  control_.header = parent.control_.header;
  const int32_t i = parent.members_.local[from], j = parent.members_.local[to];
  if (i >= 0 && j >= 0) {
    const SegmentMap map(parent.local_size());
    const auto number = static_cast<size_t>(i * (parent.local_size() - 1) + (j < i ? j : j - 1));
    char* base = segment_->data() + map.pairs + map.pair_bytes * number;
    auto* blocks = reinterpret_cast<RankBlock*>(base);
    control_.first = blocks;
    control_.blocks = {blocks, blocks + 1};
    for (int32_t r = 0; r < 2; ++r) scratch_.place(r, base + SegmentMap::kPairBlocks + r * scratch_.bytes());
  } else {  // it needs no shared memory
    remotes_.connect_pair(parent.remotes_, rank(), members_[1 - rank()]);
    spans_hosts_ = true;
    channel_->own = std::make_unique<RankBlock>();
    control_.blocks.assign(2, channel_->own.get());
    control_.blocks[1 - rank()] = &remote(1 - rank())->block();
  }
  allocate();
}

// No caller is left that could make a call: equivalent to a departure.
Team::~Team() {
  if (!is_channel() && !inherited()) depart();
  remotes_.abandon();
}

void Team::watch_peers() {
  std::vector<Process> peers(size());
  for (int32_t r = 0; r < size(); ++r) {
    const RankBlock& block = control_.block(r);
    // In another PID namespace a peer's process id is invalid here, or denotes another process.
    const bool known = block.pid_namespace.load(std::memory_order_relaxed) == pid_namespace();
    if (r != rank() && !threads_ && known)
      peers[r] = {block.pid.load(std::memory_order_relaxed), block.started.load(std::memory_order_relaxed)};
  }
  liveness_ = std::make_shared<Liveness>(peers);
}

void Team::require_own() const {
  if (inherited())
    throw CommunicatorFault(
        Fault::aborted, -1,
        "communicator '" + name_ + "' belongs to the process that this one was forked from; a child cannot use it");
}

void Team::depart() {
  if (left_.exchange(true)) return;
  if (!is_channel()) explain_departure();
  const std::string why = failure();
  if (remotes_.control && !is_channel()) remotes_.control->send_depart(why);
  control_.block(rank()).set_failure(why);
  control_.block(rank()).presence.store(Presence::departed, std::memory_order_release);
}

void Team::poison(const Abort& why) {
  if (control_.poison(members_.self(), why) && remotes_.control) remotes_.control->send_abort(why);
}

void Team::give_up(const Operation& op, Fault fault, int32_t culprit, const std::string& text, uint64_t from) {
  failed_ = op.sequence;
  poison({fault, culprit, text, channel_number(), from != 0 ? from : op.sequence});
}

void Team::report(Fault fault, int32_t culprit, const std::string& text) {
  poison({fault, culprit, text, channel_number(), sequence_.load(std::memory_order_relaxed)});
}

bool Team::given_up(const Operation& op) const {
  return control_.poisoned() && (failed_ == op.sequence || control_.ends(channel_number(), op.sequence));
}

void Team::interrupt(const std::string& where) {
  poison({Fault::aborted, members_.self(), label(rank()) + " was interrupted in " + where});
}

void Team::add_window(int64_t id, WindowView view) {
  require(!is_channel(), "a channel between two ranks has no windows");
  require(!spans_hosts_ || !remotes_.first.empty(), "the hosts of the ranks are not known: see watch_hosts");
  windows_.add(id, view, local_rank());
}

}  // namespace pc
