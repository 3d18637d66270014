#include "executor/cpu/team.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/checked.h"
#include "link/tcp.h"
#include "link/ucx.h"

namespace pc {
namespace {

constexpr int64_t kPage = 4096;
constexpr int64_t kLeastPairScratch = 64 << 10;  // bytes: two tiles of an eager message
constexpr int64_t kMostPairScratch = 2 << 20;  // less is read from the peer's cache: 1 MiB twice as slow in half of it
constexpr int64_t kPairsScratch = 16 << 20;  // of all pairs, while each has at least the least
constexpr int32_t kMostRanks = 1 << 14;  // of one host; the map below fits 64 bits

constexpr size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

constexpr size_t kPairBlocks = round_up(2 * sizeof(RankBlock), 64);

// Each rank has a channel to each other one.
constexpr int64_t pairs_of(int64_t size) { return size * (size - 1); }

// Bytes of scratch of one rank's messages to another.  With this odd number of pages a tile whose size is a power of
// two fills its segments: see ScratchRing.
constexpr int64_t pair_scratch(int32_t size) {
  const int64_t share = kPairsScratch / std::max<int64_t>(1, pairs_of(size));
  return std::clamp(share, kLeastPairScratch, kMostPairScratch) / (2 * kPage) * (2 * kPage) + kPage;
}

// Offsets in a communicator's segment.
struct Map {
  explicit Map(int32_t size)
      : blocks(round_up(sizeof(ControlHeader), kPage)),
        pairs(round_up(blocks + size * sizeof(RankBlock), kPage)),
        pair_bytes(kPairBlocks + pair_scratch(size)),
        scratch(round_up(pairs + pair_bytes * static_cast<size_t>(pairs_of(size)), kPage)) {}
  size_t blocks, pairs, pair_bytes, scratch;
};

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

}  // namespace

std::function<bool()> Team::interrupted;

std::vector<int32_t> Team::all_of(int32_t size) {
  std::vector<int32_t> ranks(static_cast<size_t>(checked_size(size)));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

size_t Team::segment_bytes(int32_t size, int64_t scratch_bytes) {
  const size_t scratch = Map(checked_size(size)).scratch;
  require(scratch_bytes >= 0, "scratch of " + std::to_string(scratch_bytes) + " bytes");
  const auto all =
      checked_mul<size_t>(static_cast<size_t>(size), static_cast<size_t>(scratch_bytes), "bytes of scratch");
  return checked_add(scratch, all, "bytes of a communicator");
}

Team::Team(std::shared_ptr<Segment> segment, int32_t rank, int32_t size, int64_t scratch_bytes,
           std::vector<int32_t> world_ranks, std::string name, bool threads, std::vector<int32_t> here,
           const std::vector<Sockets>& others, const std::shared_ptr<UcxWorker>& ucx)
    : segment_(std::move(segment)),
      rank_(checked_rank(rank, checked_size(size))),
      size_(size),
      spans_hosts_(!others.empty()),
      scratch_stride_(scratch_bytes),
      world_ranks_(std::move(world_ranks)),
      name_(std::move(name)),
      threads_(threads),
      members_(all_of(size)),
      ring_(scratch_bytes),
      here_(std::move(here)),
      sockets_(others) {
  const auto local = static_cast<int32_t>(here_.size());
  connect(others, ucx);
  require(local + static_cast<int32_t>(others.size()) == size && std::count(here_.begin(), here_.end(), rank) == 1,
          "every rank is either on this host, as this one is, or on another one");
  require(segment_ != nullptr && segment_->bytes() >= segment_bytes(local, scratch_bytes),
          "the segment is smaller than " + std::to_string(local) + " ranks with " + std::to_string(scratch_bytes) +
              " bytes of scratch each need");
  require(world_ranks_.size() == static_cast<size_t>(size), "world_ranks: one number for each of " +
                                                                std::to_string(size) + " ranks, not " +
                                                                std::to_string(world_ranks_.size()));
  const Map map(local);
  char* base = segment_->data();
  control_.header = reinterpret_cast<ControlHeader*>(base);
  control_.blocks.assign(size, nullptr);
  scratch_of_.assign(size, nullptr);
  for (int32_t i = 0; i < local; ++i) {
    const int32_t r = checked_rank(here_[i], size);
    control_.blocks[r] = reinterpret_cast<RankBlock*>(base + map.blocks) + i;
    scratch_of_[r] = base + map.scratch + i * scratch_bytes;
  }
  local_.assign(size, -1);
  for (int32_t i = 0; i < local; ++i) local_[here_[i]] = i;
  if (local == size) control_.first = reinterpret_cast<RankBlock*>(base + map.blocks);
  for (const Sockets& each : others) control_.blocks[each.rank] = &remotes_[each.rank]->block();
  allocate();
  RankBlock& mine = control_.block(rank);
  mine.pid.store(getpid(), std::memory_order_relaxed);
  mine.pid_namespace.store(pid_namespace(), std::memory_order_relaxed);
  mine.started.store(own_start_time(), std::memory_order_relaxed);
  mine.presence.store(Presence::here, std::memory_order_release);
}

// Takes over the sockets.
void Team::connect(const std::vector<Sockets>& others, const std::shared_ptr<UcxWorker>& ucx) {
  if (others.empty()) return;
  remotes_.resize(size_);
  links_ = std::make_shared<ControlLinks>();
  for (const Sockets& each : others) {
    std::shared_ptr<Link> data;
    if (ucx != nullptr) data = UcxWorker::link(ucx, each.rank);
    else data = std::make_shared<TcpLink>(each.data);
    auto control = std::make_unique<TcpLink>(each.control);
    messages_.push_back(std::make_unique<TcpLink>(each.messages));
    checked_rank(each.rank, size_);
    require(remotes_[each.rank] == nullptr && std::count(here_.begin(), here_.end(), each.rank) == 0,
            "two connections to rank " + std::to_string(each.rank));
    remotes_[each.rank] = std::make_shared<Remote>(std::move(data));
    links_->add(each.rank, std::move(control));
  }
}

void Team::allocate() {
  readers_.assign(size_t{ring_.segments()} * static_cast<size_t>(size_), 0);
  checked_.assign(size_, 0);
  peer_input_.assign(size_, nullptr);
  peer_output_.assign(size_, nullptr);
}

Team::Team(const Team& parent, int32_t from, int32_t to)
    : patience(parent.patience),
      tile_bytes(parent.tile_bytes),
      segment_(parent.segment_),
      rank_(parent.rank_ == from ? 0 : 1),
      size_(2),
      scratch_stride_(pair_scratch(std::max<int32_t>(1, static_cast<int32_t>(parent.here_.size())))),
      world_ranks_{parent.world_ranks_[checked_rank(from, parent.size_)],
                   parent.world_ranks_[checked_rank(to, parent.size_)]},
      name_(parent.name_),
      threads_(parent.threads_),
      liveness_(parent.liveness_),
      members_{from, to},
      is_pair_(true),
      channel_(static_cast<int64_t>(from) * parent.size_ + to),
      ring_(scratch_stride_),
      parent_control_(parent.control_),
      parent_world_ranks_(parent.world_ranks_),
      parent_remotes_(parent.remotes_),
      links_(parent.links_) {
  require(!parent.is_pair_, "a channel between two ranks cannot have channels");
  require(from != to && (parent.rank_ == from || parent.rank_ == to),
          "rank " + std::to_string(parent.rank_) + " has no channel from rank " + std::to_string(from) + " to rank " +
              std::to_string(to));
  control_.header = parent.control_.header;
  const auto index = [&](int32_t r) {
    return std::find(parent.here_.begin(), parent.here_.end(), r) - parent.here_.begin();
  };
  const auto local = static_cast<int32_t>(parent.here_.size());
  const auto i = index(from), j = index(to);
  if (i < local && j < local) {
    const Map map(local);
    const auto number = static_cast<size_t>(i * (local - 1) + (j < i ? j : j - 1));
    char* base = segment_->data() + map.pairs + map.pair_bytes * number;
    auto* blocks = reinterpret_cast<RankBlock*>(base);
    control_.first = blocks;
    control_.blocks = {blocks, blocks + 1};
    scratch_of_ = {base + kPairBlocks, base + kPairBlocks + scratch_stride_};
  } else {
    connect_pair(parent, rank_ == 0 ? to : from);
  }
  allocate();
}

// A channel to another host needs no shared memory.  The one in the other direction uses the same connection: this rank
// only sends on it, or only receives.
void Team::connect_pair(const Team& parent, int32_t peer) {
  const auto socket = std::find_if(parent.sockets_.begin(), parent.sockets_.end(),
                                   [&](const Sockets& each) { return each.rank == peer; });
  const int copy = fcntl(socket->messages, F_DUPFD_CLOEXEC, 0);
  require(copy >= 0, std::string("a channel cannot be made: ") + strerror(errno));
  own_block_ = std::make_unique<RankBlock>();
  remotes_.resize(2);
  remotes_[1 - rank_] = std::make_shared<Remote>(std::make_shared<TcpLink>(copy, rank_ == 1));
  spans_hosts_ = true;
  control_.blocks.assign(2, own_block_.get());
  control_.blocks[1 - rank_] = &remotes_[1 - rank_]->block();
  scratch_of_.assign(2, nullptr);
}

// No caller is left that could make a call: equivalent to a departure.
Team::~Team() {
  if (!is_pair_ && !inherited()) depart();
  abandon();
}

// No call continues: what is on its way may no longer touch the memory of those that have begun.
void Team::abandon() {
  for (const auto& each : remotes_)
    if (each != nullptr) each->link().abandon();
}

void Team::watch_peers() {
  std::vector<Process> peers(size_);
  for (int32_t r = 0; r < size_; ++r) {
    const RankBlock& block = control_.block(r);
    // In another PID namespace a peer's process id is invalid here, or denotes another process.
    const bool known = block.pid_namespace.load(std::memory_order_relaxed) == pid_namespace();
    if (r != rank_ && !threads_ && known)
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
  if (!is_pair_) explain_departure();
  const std::string why = failure();
  if (links_ && !is_pair_) links_->send_depart(why);
  control_.block(rank_).set_failure(why);
  control_.block(rank_).presence.store(Presence::departed, std::memory_order_release);
}

void Team::poison(const Abort& why) {
  if (control_.poison(members_[rank_], why) && links_) links_->send_abort(why);
}

void Team::give_up(const Operation& op, Fault fault, int32_t culprit, const std::string& text, uint64_t from) {
  failed_ = op.sequence;
  poison({fault, culprit, text, channel_, from != 0 ? from : op.sequence});
}

void Team::report(Fault fault, int32_t culprit, const std::string& text) {
  poison({fault, culprit, text, channel_, sequence_.load(std::memory_order_relaxed)});
}

bool Team::given_up(const Operation& op) const {
  return control_.poisoned() && (failed_ == op.sequence || control_.ends(channel_, op.sequence));
}

void Team::interrupt(const std::string& where) {
  poison({Fault::aborted, members_[rank_], label(rank_) + " was interrupted in " + where});
}

void Team::add_window(int64_t id, WindowView view) {
  const std::lock_guard lock(windows_mutex_);
  require(!is_pair_, "a channel between two ranks has no windows");
  require(!spans_hosts_ || !first_elsewhere_.empty(), "the hosts of the ranks are not known: see watch_hosts");
  require(!windows_.contains(id), "window " + std::to_string(id) + " exists already");
  require(!window_at_.contains(part_of(view, rank_)), "a window exists in this memory already");
  has_windows_ = true;
  windows_[id] = view;
  window_at_[part_of(view, rank_)] = id;
}

void Team::remove_window(int64_t id) {
  const std::lock_guard lock(windows_mutex_);
  const auto found = windows_.find(id);
  if (found == windows_.end()) return;
  window_at_.erase(part_of(found->second, rank_));
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
  if (found == windows_.end() || at.offset < 0 || at.offset > found->second.bytes) return nullptr;
  return part_of(found->second, peer) + at.offset;
}

std::string Team::number(int32_t rank) const { return rank_number(members_[rank], world_ranks_[rank]); }

}  // namespace pc
