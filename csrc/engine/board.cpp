#include "engine/board.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>
#include <thread>
#include <utility>

#include "base/status.h"

namespace pc::engine {
namespace {

using std::chrono::steady_clock;

int64_t now_ns() { return steady_clock::now().time_since_epoch().count(); }
static_assert(std::is_same_v<steady_clock::period, std::nano>);

constexpr int kEagerTries = 100;  // of the lock, before a waiter sleeps between two: about a turn of all ranks
constexpr auto kNap = std::chrono::microseconds(50);
constexpr auto kLockedOutEvery = std::chrono::milliseconds(5);
constexpr uint32_t kHolderBits = 16;
constexpr uint64_t kHolderMask = (uint64_t{1} << kHolderBits) - 1;

constexpr double kLongestCycle = 1e6;  // seconds; in nanoseconds it is far from where an integer ends
constexpr uint32_t kPrepared = 0x5043'4244;
constexpr int32_t kMostSlots = 1 << 24;
constexpr size_t round_up(size_t bytes) { return (bytes + 63) / 64 * 64; }

// Names are told apart by 128 bits of hash; the text is for messages.
void hash_of(const std::string& name, uint64_t (&hash)[2]) {
  hash[0] = 14695981039346656037ull;
  hash[1] = name.size() + 0x9E3779B97F4A7C15ull;
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    hash[0] = (hash[0] ^ byte) * 1099511628211ull;
    hash[1] = (hash[1] + byte) * 0xD6E8FEB86659FD93ull;
    hash[1] ^= hash[1] >> 32;
  }
}

}  // namespace

struct Header {
  pthread_mutex_t mutex;  // robust: whoever dies with it is noticed
  std::atomic<uint32_t> broken;
  std::atomic<uint64_t> holding;  // how often the mutex was taken, and in the low bits who holds it: rank + 1, 0 nobody
  alignas(64) std::atomic<uint32_t> news;  // a futex
  std::atomic<uint32_t> sleepers;
  alignas(64) std::atomic<uint64_t> batches;  // cut so far
  std::atomic<int32_t> ready;  // operations that wait to be cut
  std::atomic<int64_t> threshold;  // bytes
  std::atomic<double> cycle;  // seconds
  uint64_t ids;  // written to the ring so far
  int64_t ready_since, ready_bytes;
  bool urgent;
  int32_t used, hand;
  RankSet joined;
  std::atomic<uint32_t> prepared;  // kPrepared
  // Written by each rank alone; of a cache line of their own, since a rank writes one after every batch.
  struct alignas(64) Progress { std::atomic<uint64_t> beats, completed; } progress[kMostRanks];
};

// One round of an operation: what has been said of it.
struct Record {
  Signature signature;  // of the first to announce
  Signature theirs;  // of the first that differs from it
  int32_t first, other, last, priority;
  int64_t bytes, place, since, ready;
  bool urgent, differs;
  RankSet absent;  // who had joined and takes part without having submitted it
};

// An operation.  A rank may have finished with a round, and announce the next, before a slower one has fetched it: there
// are two records, and a round is complete only when all have fetched the one before.
struct Slot {
  uint64_t hash[2];
  char name[128];
  int32_t next;  // in its bucket; -1: the last
  uint32_t turn;
  RankSet announced;  // the round that is being announced: records[turn & 1]
  RankSet outstanding;  // who has not fetched the agreed round yet: the other record
  Record records[2];
  int64_t rows[];  // of both records, one for each rank

  Record& current() { return records[turn & 1]; }
  Record& agreed() { return records[~turn & 1]; }
};

struct Board::Batch {
  uint64_t first;  // in the ring
  int32_t count;
};

namespace {
constexpr size_t slot_bytes(int32_t size) { return round_up(sizeof(Slot) + 2 * sizeof(int64_t) * size); }
}  // namespace

// Holds the board, or not if that took longer than the limit.  A rank that died holding it has left it in an unknown
// state: nobody uses it any more.
class Board::Lock {
 public:
  Lock(Board& board, Limit limit) : header_(*board.header_) {
    const int code = board.take_lock(limit);
    if (code == EBUSY) return;
    if (code == EOWNERDEAD) {
      header_.broken.store(1, std::memory_order_release);
      pthread_mutex_consistent(&header_.mutex);
    } else if (code != 0) {
      throw SystemFailure(std::string("the engine's lock: ") + std::strerror(code));
    }
    if (header_.broken.load(std::memory_order_acquire) == 0) {
      held_ = true;
      const uint64_t times = (header_.holding.load(std::memory_order_relaxed) >> kHolderBits) + 1;
      header_.holding.store(times << kHolderBits | static_cast<uint64_t>(board.rank_ + 1), std::memory_order_relaxed);
      return;
    }
    const int32_t holder = holder_of(header_);  // nobody has written it since
    pthread_mutex_unlock(&header_.mutex);
    const int32_t rank = holder < 0 && board.who_died ? board.who_died() : holder;
    throw CommunicatorFault(
        Fault::peer_lost, rank,
        (rank < 0 ? "a rank" : board.label(rank)) + " is gone: it ended while it wrote to the engine's board");
  }
  ~Lock() {
    if (!held_) return;
    header_.holding.store(header_.holding.load(std::memory_order_relaxed) & ~kHolderMask, std::memory_order_relaxed);
    pthread_mutex_unlock(&header_.mutex);
  }
  Lock(const Lock&) = delete;
  explicit operator bool() const { return held_; }

  static int32_t holder_of(const Header& header) {
    return static_cast<int32_t>(header.holding.load(std::memory_order_relaxed) & kHolderMask) - 1;
  }

 private:
  Header& header_;
  bool held_ = false;
};

// 0, EBUSY: not by the limit, or another error.  The lock is held for microseconds, unless its holder is without a core
// or stopped.  Waiters poll: the mutex knows only a clock that somebody may set.
int Board::take_lock(Limit limit) {
  int code = pthread_mutex_trylock(&header_->mutex);
  auto checked = Limit{};
  for (int tries = 0; code == EBUSY; ++tries) {
    if (tries < kEagerTries) sched_yield();
    else std::this_thread::sleep_for(kNap);
    code = pthread_mutex_trylock(&header_->mutex);
    if (code != EBUSY) break;
    const auto now = steady_clock::now();
    if (checked == Limit{}) checked = now;
    if (now - checked >= kLockedOutEvery) {
      checked = now;
      if (locked_out) locked_out(Lock::holder_of(*header_), same_holder_for());
    }
    if (now >= limit) break;
  }
  return code;
}

// For how long this rank has seen one and the same holding of the lock, over all of its threads and attempts.
std::chrono::nanoseconds Board::same_holder_for() {
  const uint64_t holding = header_->holding.load(std::memory_order_relaxed);
  const int64_t now = now_ns();
  if (holding_seen_.exchange(holding, std::memory_order_relaxed) != holding)
    holding_since_.store(now, std::memory_order_relaxed);
  return std::chrono::nanoseconds(now - holding_since_.load(std::memory_order_relaxed));
}

int32_t Board::holder() const { return Lock::holder_of(*header_); }

bool Board::await_lock(Limit limit) { return static_cast<bool>(Lock(*this, limit)); }

size_t Board::bytes(int32_t size, int32_t slots) {
  if (size < 1 || size > kMostRanks)
    throw InvalidArgument("the engine takes 1 to 256 ranks of one host, not " + std::to_string(size));
  if (slots < 1 || slots > kMostSlots)
    throw InvalidArgument("a board has 1 to " + std::to_string(kMostSlots) + " slots, not " + std::to_string(slots));
  const auto n = static_cast<size_t>(slots);
  return round_up(sizeof(Header)) + n * slot_bytes(size) + 4 * round_up(n * sizeof(int32_t)) +
         round_up(n * sizeof(Batch));
}

Board::Board(std::shared_ptr<void> owner, char* memory, int32_t rank, int32_t size, int32_t slots)
    : owner_(std::move(owner)), header_(reinterpret_cast<Header*>(memory)), rank_(rank), size_(size), slots_(slots) {
  const auto n = static_cast<size_t>(slots);
  slots_at_ = memory + round_up(sizeof(Header));
  char* at = slots_at_ + n * slot_bytes(size);
  const auto next = [&at](size_t bytes) { return std::exchange(at, at + round_up(bytes)); };
  buckets_ = reinterpret_cast<int32_t*>(next(n * sizeof(int32_t)));
  ready_ = reinterpret_cast<int32_t*>(next(n * sizeof(int32_t)));
  ring_ = reinterpret_cast<int32_t*>(next(2 * n * sizeof(int32_t)));
  batches_ = reinterpret_cast<Batch*>(at);
}

void Board::prepare() {
  pthread_mutexattr_t kind;
  pthread_mutexattr_init(&kind);
  pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&header_->mutex, &kind);
  pthread_mutexattr_destroy(&kind);
  std::fill(buckets_, buckets_ + slots_, -1);
  header_->prepared.store(kPrepared, std::memory_order_release);
}

bool Board::prepared() const { return header_->prepared.load(std::memory_order_acquire) == kPrepared; }

Slot& Board::slot(int32_t index) const {
  return *reinterpret_cast<Slot*>(slots_at_ + static_cast<size_t>(index) * slot_bytes(size_));
}

// -- slots --------------------------------------------------------------------------------------------------------

// The slot of a name; a new one if it has none.
int32_t Board::find(const std::string& name, const uint64_t (&hash)[2]) {
  int32_t& bucket = buckets_[hash[0] % static_cast<uint64_t>(slots_)];
  for (int32_t i = bucket; i >= 0; i = slot(i).next)
    if (slot(i).hash[0] == hash[0] && slot(i).hash[1] == hash[1]) return i;
  const int32_t made = take_slot();
  Slot& s = slot(made);
  std::memset(static_cast<void*>(&s), 0, slot_bytes(size_));
  std::copy(std::begin(hash), std::end(hash), s.hash);
  name.copy(s.name, sizeof s.name - 1);
  int32_t& head = buckets_[hash[0] % static_cast<uint64_t>(slots_)];
  s.next = std::exchange(head, made);
  return made;
}

// An unused slot, or the next one round whose operation is not under way.
int32_t Board::take_slot() {
  if (header_->used < slots_) return header_->used++;
  for (int32_t tried = 0; tried < slots_; ++tried) {
    const int32_t index = header_->hand;
    header_->hand = (index + 1) % slots_;
    Slot& s = slot(index);
    if (!s.announced.none() || !s.outstanding.none()) continue;
    forget(index);
    return index;
  }
  throw InvalidArgument("more than " + std::to_string(slots_) +
                        " operations are under way: raise HOROVOD_CACHE_CAPACITY");
}

void Board::forget(int32_t index) {
  int32_t* link = &buckets_[slot(index).hash[0] % static_cast<uint64_t>(slots_)];
  while (*link != index) link = &slot(*link).next;
  *link = slot(index).next;
}

// -- announcing ---------------------------------------------------------------------------------------------------

bool Board::announce(std::vector<Announcement>& items, bool urgent, Limit limit) {
  bool ready = false;
  {
    const Lock lock(*this, limit);
    if (!lock) return false;
    const int64_t now = now_ns();
    try {
      for (Announcement& item : items) note(item, urgent, now);
    } catch (const InvalidArgument&) {  // no room: it was not said
      for (const Announcement& item : items)
        if (item.slot >= 0) slot(item.slot).announced.remove(rank_);
      throw;
    }
    for (const Announcement& item : items) {
      if (item.signature.kind == Kind::join) {
        header_->joined.add(rank_);
        for (int32_t i = 0; i < header_->used; ++i)
          if (i != item.slot) ready = settle(i, now) || ready;
      }
      ready = settle(item.slot, now) || ready;
    }
  }
  if (ready) wake();
  return true;
}

void Board::note(Announcement& item, bool urgent, int64_t now) {
  uint64_t hash[2];
  hash_of(item.name, hash);
  item.slot = find(item.name, hash);
  Slot& s = slot(item.slot);
  Record& r = s.current();
  if (s.announced.none()) {
    r = {};
    r.signature = item.signature;
    r.first = rank_;
    r.since = now;
    r.bytes = item.bytes;
    r.place = item.place;
    r.priority = item.priority;
  } else {
    if (!r.differs && r.signature != item.signature) {
      r.differs = true;
      r.theirs = item.signature;
      r.other = rank_;
    }
    if (r.place != item.place) r.place = -1;
  }
  r.urgent = r.urgent || urgent;
  r.last = rank_;
  s.announced.add(rank_);
  s.rows[(s.turn & 1) * size_ + rank_] = item.rows;
}

// All have submitted it or need not, and all have fetched the round before.
bool Board::complete(const Slot& s) const { return !s.announced.none() && s.outstanding.none() && submitted_by_all(s); }

bool Board::submitted_by_all(const Slot& s) const {
  const bool join = s.records[s.turn & 1].signature.kind == Kind::join;
  return (join ? s.announced : s.announced | header_->joined) == RankSet::first(size_);
}

// Makes an operation ready if it is complete.
bool Board::settle(int32_t index, int64_t now) {
  Slot& s = slot(index);
  if (!complete(s)) return false;
  Record& r = s.current();
  r.ready = now;
  for (int32_t rank = 0; rank < size_; ++rank)
    if (!s.announced.has(rank)) r.absent.add(rank);
  if (r.signature.kind == Kind::join) header_->joined = {};
  s.outstanding = RankSet::first(size_);
  s.announced = {};
  ++s.turn;
  const int32_t count = header_->ready.load(std::memory_order_relaxed);
  if (count == 0) {
    header_->ready_since = now;
    header_->ready_bytes = 0;
    header_->urgent = false;
  }
  ready_[count] = index;
  header_->ready_bytes += r.bytes;
  header_->urgent = header_->urgent || r.urgent || r.differs || !is_fused(r.signature.kind);
  header_->ready.store(count + 1, std::memory_order_release);
  return true;
}

bool Board::leave(bool regardless, Limit limit) {
  {
    const Lock lock(*this, limit);
    if (!lock || has_batch() || has_ready()) return false;
    for (int32_t i = 0; i < header_->used && !regardless; ++i) {
      const Slot& s = slot(i);
      if (!s.outstanding.none() && s.announced.has(rank_) && submitted_by_all(s)) return false;
    }
    header_->joined.remove(rank_);
    for (int32_t i = 0; i < header_->used; ++i) slot(i).announced.remove(rank_);
  }
  wake();
  return true;
}

bool Board::urge(int32_t index, Limit limit) {
  {
    const Lock lock(*this, limit);
    if (!lock) return false;
    Slot& s = slot(index);
    if (s.announced.has(rank_)) s.current().urgent = true;
    const int32_t count = header_->ready.load(std::memory_order_relaxed);
    if (header_->urgent || std::find(ready_, ready_ + count, index) == ready_ + count) return true;
    header_->urgent = true;
  }
  wake();
  return true;
}

// -- batches ------------------------------------------------------------------------------------------------------

bool Board::has_batch() const { return header_->batches.load(std::memory_order_acquire) > fetched_; }
bool Board::has_ready() const { return header_->ready.load(std::memory_order_acquire) > 0; }

steady_clock::time_point Board::cut(bool at_once, Limit limit) {
  if (!has_ready()) return steady_clock::time_point::max();
  {
    const Lock lock(*this, limit);
    if (!lock || has_batch()) return steady_clock::time_point{};
    if (header_->ready.load(std::memory_order_relaxed) == 0) return steady_clock::time_point::max();
    const auto cycle = std::chrono::nanoseconds(static_cast<int64_t>(cycle_seconds() * 1e9));
    const auto due = steady_clock::time_point(std::chrono::nanoseconds(header_->ready_since)) + cycle;
    if (!at_once && !header_->urgent && header_->ready_bytes < threshold() && steady_clock::now() < due) return due;
    cut_batch(choose());
  }
  wake();
  return steady_clock::time_point{};
}

// Positions in the list of what is ready: the most needed operation, and those that fuse with it, most needed first.
std::vector<int32_t> Board::choose() {
  const int32_t count = header_->ready.load(std::memory_order_relaxed);
  std::vector<int32_t> order(count);
  for (int32_t i = 0; i < count; ++i) order[i] = i;
  const auto at = [this](int32_t position) -> const Record& { return slot(ready_[position]).agreed(); };
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return at(a).priority < at(b).priority; });
  std::vector<int32_t> chosen{order[0]};
  const Record& head = at(order[0]);
  if (head.differs) return chosen;
  int64_t bytes = head.bytes;
  uint64_t group = head.signature.group;
  for (size_t i = 1; i < order.size(); ++i) {
    const Record& next = at(order[i]);
    if (next.differs || !head.signature.fuses_with(next.signature)) continue;
    const bool together = group != 0 && next.signature.group == group;  // a group is not torn apart
    if (!together && bytes + next.bytes > threshold()) break;
    group = next.signature.group;
    bytes += next.bytes;
    chosen.push_back(order[i]);
  }
  return chosen;
}

void Board::cut_batch(const std::vector<int32_t>& chosen) {
  const uint64_t number = header_->batches.load(std::memory_order_relaxed);
  batches_[number % static_cast<uint64_t>(slots_)] = {header_->ids, static_cast<int32_t>(chosen.size())};
  for (const int32_t position : chosen) {
    const int32_t index = ready_[position];
    ring_[header_->ids++ % static_cast<uint64_t>(2 * slots_)] = index;
    header_->ready_bytes -= slot(index).agreed().bytes;
    ready_[position] = -1;
  }
  const int32_t count = header_->ready.load(std::memory_order_relaxed);
  const auto left = static_cast<int32_t>(std::remove(ready_, ready_ + count, -1) - ready_);
  header_->ready.store(left, std::memory_order_release);
  header_->batches.store(number + 1, std::memory_order_release);
}

std::vector<Member> Board::fetch(Limit limit) {
  std::vector<Member> members;
  if (!has_batch()) return members;
  bool ready = false;
  {
    const Lock lock(*this, limit);
    if (!lock) return members;
    const Batch batch = batches_[fetched_++ % static_cast<uint64_t>(slots_)];
    members.resize(batch.count);
    for (int32_t i = 0; i < batch.count; ++i) {
      const int32_t index = ring_[(batch.first + static_cast<uint64_t>(i)) % static_cast<uint64_t>(2 * slots_)];
      Slot& s = slot(index);
      const Record& r = s.agreed();
      members[i] = {index, r.place, r.since, r.ready, nullptr};
      if (r.differs || !r.signature.is_of_core() || !r.absent.none()) members[i].details = details_of(s);
      s.outstanding.remove(rank_);
      ready = settle(index, now_ns()) || ready;  // the others may have submitted it again already
    }
  }
  if (ready) wake();
  return members;
}

std::unique_ptr<Details> Board::details_of(Slot& s) const {
  const Record& r = s.agreed();
  auto details = std::make_unique<Details>();
  details->name = s.name;
  details->signature = r.signature;
  details->absent = r.absent;
  details->last = r.last;
  const int64_t* rows = s.rows + (~s.turn & 1) * size_;
  for (int32_t rank = 0; rank < size_; ++rank) details->rows.push_back(r.absent.has(rank) ? 0 : rows[rank]);
  if (r.differs)
    details->difference = "operation '" + details->name + "' differs between ranks: " + label(r.first) + " submits " +
                          r.signature.describe() + "; " + label(r.other) + " submits " + r.theirs.describe();
  return details;
}

// -- news ---------------------------------------------------------------------------------------------------------

uint32_t Board::news() const { return header_->news.load(std::memory_order_acquire); }

void Board::sleep(uint32_t seen, std::chrono::nanoseconds limit) {
  const timespec timeout{static_cast<time_t>(limit.count() / 1000000000),
                         static_cast<long>(limit.count() % 1000000000)};
  header_->sleepers.fetch_add(1, std::memory_order_seq_cst);
  if (header_->news.load(std::memory_order_seq_cst) == seen)
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&header_->news), FUTEX_WAIT, seen, &timeout, nullptr, 0);
  header_->sleepers.fetch_sub(1, std::memory_order_relaxed);
}

void Board::wake() {
  header_->news.fetch_add(1, std::memory_order_seq_cst);
  if (header_->sleepers.load(std::memory_order_seq_cst) != 0)
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&header_->news), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void Board::beat() { header_->progress[rank_].beats.fetch_add(1, std::memory_order_relaxed); }
uint64_t Board::beats(int32_t rank) const { return header_->progress[rank].beats.load(std::memory_order_relaxed); }

void Board::complete_batch() { header_->progress[rank_].completed.store(fetched_, std::memory_order_release); }
uint64_t Board::completed(int32_t rank) const {
  return header_->progress[rank].completed.load(std::memory_order_acquire);
}
uint64_t Board::batches() const { return header_->batches.load(std::memory_order_acquire); }

// -- what is missing ----------------------------------------------------------------------------------------------

std::vector<Stall> Board::stalls(double seconds, bool all, Limit limit) {
  std::vector<Stall> found;
  const Lock lock(*this, limit);
  if (!lock) return found;
  const int64_t now = now_ns();
  for (int32_t i = 0; i < header_->used; ++i) {
    Slot& s = slot(i);
    const Record& record = s.current();
    const double waited = static_cast<double>(now - record.since) * 1e-9;
    if (s.announced.none() || record.signature.kind == Kind::join || waited < seconds) continue;
    Stall stall{s.name, {}, -1, waited};
    for (int32_t r = 0; r < size_; ++r) {
      if (s.announced.has(r)) stall.reporter = stall.reporter < 0 ? r : stall.reporter;
      else if (!header_->joined.has(r)) stall.missing.push_back(r);
    }
    if (!stall.missing.empty() && (all || stall.reporter == rank_)) found.push_back(std::move(stall));
  }
  return found;
}

std::string Board::awaited_from(int32_t rank, Limit limit) {
  const Lock lock(*this, limit);
  for (int32_t i = 0; lock && i < header_->used; ++i) {
    Slot& s = slot(i);
    if (s.announced.none() || s.announced.has(rank)) continue;
    if (s.current().signature.kind == Kind::join || !header_->joined.has(rank)) return s.name;
  }
  return {};
}

void Board::tune(int64_t threshold, double cycle_seconds) {
  header_->threshold.store(threshold, std::memory_order_relaxed);
  header_->cycle.store(std::min(cycle_seconds, kLongestCycle), std::memory_order_relaxed);
}

int64_t Board::threshold() const { return header_->threshold.load(std::memory_order_relaxed); }
double Board::cycle_seconds() const { return header_->cycle.load(std::memory_order_relaxed); }

}  // namespace pc::engine
