#include "engine/negotiation/board.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <ctime>
#include <utility>

#include "base/status.h"
#include "engine/negotiation/board_memory.h"
#include "engine/timeline.h"

namespace pc::engine {
namespace {

constexpr double kLongestCycle = 1e6;  // seconds; in nanoseconds it fits an integer by far
constexpr uint32_t kPrepared = 0x5043'4244;
constexpr int32_t kMostSlots = 1 << 24;

// UTF-8, cut between characters where the memory ends.
template <size_t kBytes>
void copy_text(const std::string& text, char (&memory)[kBytes]) {
  size_t length = std::min(text.size(), kBytes - 1);
  while (length > 0 && length < text.size() && (text[length] & 0xC0) == 0x80) --length;
  text.copy(memory, length);
  memory[length] = 0;
}

}  // namespace

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
    : Carrier(rank, size), owner_(std::move(owner)), header_(reinterpret_cast<Header*>(memory)), slots_(slots) {
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

// A name's slot; a new one if it has none.
int32_t Board::find(Announcement& item) {
  if (item.hash == NameHash{}) item.hash = hash_of(item.name);
  const NameHash& hash = item.hash;
  if (item.slot >= 0 && slot(item.slot).hash == hash) return item.slot;
  int32_t& bucket = buckets_[hash.words[0] % static_cast<uint64_t>(slots_)];
  for (int32_t i = bucket; i >= 0; i = slot(i).next)
    if (slot(i).hash == hash) return i;
  const int32_t made = take_slot();
  Slot& s = slot(made);
  std::memset(static_cast<void*>(&s), 0, slot_bytes(size_));
  s.hash = hash;
  copy_text(item.name, s.name);
  s.next = std::exchange(bucket, made);
  return made;
}

// An unused slot, or else the next one in turn whose operation is not in progress.
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
                        " operations are in progress: raise HOROVOD_CACHE_CAPACITY");
}

void Board::forget(int32_t index) {
  int32_t* link = &buckets_[slot(index).hash.words[0] % static_cast<uint64_t>(slots_)];
  while (*link != index) link = &slot(*link).next;
  *link = slot(index).next;
}

// -- announcing ---------------------------------------------------------------------------------------------------

// The policy's view of the rounds, which are identified by their slots.
struct Board::View {
  Board& board;
  int64_t now;
  void join(int32_t rank) { board.header_->joined.add(rank); }
  uint64_t number_of(int32_t index) const { return board.slot(index).current().number; }
  bool settle(int32_t index) { return board.settle(index, now); }
  std::vector<int32_t> rounds() const {
    std::vector<int32_t> found;
    for (int32_t i = 0; i < board.header_->used; ++i)
      if (!board.slot(i).announced.none()) found.push_back(i);
    return found;
  }
};

bool Board::announce(std::span<Announcement* const> items, bool urgent, Limit limit, std::vector<Member>* fetched) {
  bool ready = false;
  {
    const Lock lock(*this, limit);
    if (!lock) return false;
    const int64_t now = Timeline::now();
    size_t noted = 0;
    try {
      for (; noted < items.size(); ++noted) note(*items[noted], urgent, now);
    } catch (const InvalidArgument&) {  // no room: it was not announced
      for (const Announcement* item : items.first(noted)) slot(item->slot).announced.remove(rank_);
      throw;
    }
    View view{*this, now};
    for (const Announcement* item : items)
      ready = engine::settle(view, item->signature.kind, rank_, item->slot) || ready;
    if (ready && fetched != nullptr && !has_batch()) cut_ready(false, fetched);
  }
  if (ready) wake();
  return true;
}

void Board::note(Announcement& item, bool urgent, int64_t now) {
  item.slot = find(item);
  Slot& s = slot(item.slot);
  if (s.announced.none()) s.current().begin(item, rank_, urgent, header_->rounds++, now);
  else s.current().add(item, rank_, urgent);
  s.announced.add(rank_);
  s.rows[(s.turn & 1) * size_ + rank_] = item.rows;
  if (item.signature.kind == Kind::join) header_->join_slot = item.slot;
  if (header_->refused != 0) drop_refusals(s.name);
}

void Board::drop_refusals(std::string_view name) {
  for (auto& refused : header_->refusals)
    if (refused.rank == rank_ && Refusal{rank_, refused.name, {}}.concerns(name)) refused.rank = -1;
}

bool Board::complete(const Slot& s) const {
  return !s.announced.none() && is_complete(s.current().signature.kind, s.announced, header_->joined, size_);
}

// Whether a round is complete but not ready, because a slow rank has not fetched the previous one.
bool Board::awaits_fetch(bool of_mine) const {
  for (int32_t i = 0; i < header_->used; ++i) {
    const Slot& s = slot(i);
    if (!s.outstanding.none() && complete(s) && (!of_mine || s.announced.has(rank_))) return true;
  }
  return false;
}

// Makes an operation ready if it is complete and all ranks have fetched the previous round.
bool Board::settle(int32_t index, int64_t now) {
  Slot& s = slot(index);
  if (!s.outstanding.none() || !complete(s)) return false;
  Round& r = s.current();
  const bool join = r.signature.kind == Kind::join;
  if (join && awaits_fetch(false)) return false;  // ranks that have joined take part in it
  r.ready = now;
  RankSet& absent = s.absent[s.turn & 1];
  absent = {};
  for (int32_t rank = 0; rank < size_; ++rank)
    if (!s.announced.has(rank)) absent.add(rank);
  if (join) header_->joined = {};
  s.outstanding = RankSet::first(size_);
  s.announced = {};
  ++s.turn;
  const int32_t count = header_->ready.load(std::memory_order_relaxed);
  ready_[count] = index;
  header_->backlog.add(r, count == 0);
  header_->ready.store(count + 1, std::memory_order_release);
  return true;
}

bool Board::leave(bool regardless, Limit limit) {
  {
    const Lock lock(*this, limit);
    if (!lock || has_batch() || has_ready()) return false;
    if (!regardless && awaits_fetch(true)) return false;
    header_->joined.remove(rank_);
    for (int32_t i = 0; i < header_->used; ++i) slot(i).announced.remove(rank_);
  }
  wake();
  return true;
}

bool Board::flush(int32_t index, Limit limit) {
  {
    const Lock lock(*this, limit);
    if (!lock) return false;
    Slot& s = slot(index);
    if (s.announced.has(rank_)) s.current().urgent = true;
    if (header_->backlog.urgent || !is_ready(index)) return true;
    header_->backlog.urgent = true;
  }
  wake();
  return true;
}

// -- batches ------------------------------------------------------------------------------------------------------

bool Board::has_batch() const { return header_->batches.load(std::memory_order_acquire) > fetched_; }
bool Board::has_ready() const { return header_->ready.load(std::memory_order_acquire) > 0; }

// Whether an operation waits to be cut.
bool Board::is_ready(int32_t index) const {
  int32_t* const end = ready_ + header_->ready.load(std::memory_order_relaxed);
  return std::find(ready_, end, index) != end;
}

Board::Limit Board::cut(bool at_once, Limit limit, int32_t wanted, std::vector<Member>* fetched) {
  if (!has_ready()) return kNoLimit;
  bool news = true;
  {
    const Lock lock(*this, limit);
    if (!lock) return {};
    if (has_batch()) {  // another rank has cut it meanwhile
      news = false;
      if (fetched != nullptr) *fetched = take_next(news);
    } else {
      if (!has_ready()) return kNoLimit;
      const int64_t due = cut_ready(at_once || is_ready(wanted), fetched);
      if (due > 0) return Limit(std::chrono::nanoseconds(due));
    }
  }
  if (news) wake();
  return {};
}

// Cuts a batch of the ready operations, and fetches it if that is wanted, or returns when one is due, in nanoseconds of
// the steady clock.  0: it has been cut, which the others are to be told.
int64_t Board::cut_ready(bool at_once, std::vector<Member>* fetched) {
  const int64_t due = at_once ? 0 : header_->backlog.due(threshold(), cycle_seconds());
  if (due > 0 && Timeline::now() < due) return due;
  const int32_t count = header_->ready.load(std::memory_order_relaxed);
  std::vector<const Round*> ready;
  for (int32_t i = 0; i < count; ++i) ready.push_back(&slot(ready_[i]).agreed());
  cut_batch(choose(ready, threshold()));
  bool again = false;  // the others are told anyway
  if (fetched != nullptr) *fetched = take_next(again);
  return 0;
}

void Board::cut_batch(const std::vector<int32_t>& chosen) {
  const uint64_t number = header_->batches.load(std::memory_order_relaxed);
  batches_[number % static_cast<uint64_t>(slots_)] = {header_->ids, static_cast<int32_t>(chosen.size())};
  for (const int32_t position : chosen) {
    const int32_t index = ready_[position];
    ring_[header_->ids++ % static_cast<uint64_t>(2 * slots_)] = index;
    header_->backlog.bytes -= slot(index).agreed().bytes;
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
    members = take_next(ready);
  }
  if (ready) wake();
  return members;
}

// `ready`: whether that has made operations ready.
std::vector<Member> Board::take_next(bool& ready) {
  const int64_t now = Timeline::now();
  const Batch batch = batches_[fetched_++ % static_cast<uint64_t>(slots_)];
  std::vector<Member> members(static_cast<size_t>(batch.count));
  for (int32_t i = 0; i < batch.count; ++i) {
    const int32_t index = ring_[(batch.first + static_cast<uint64_t>(i)) % static_cast<uint64_t>(2 * slots_)];
    Slot& s = slot(index);
    const Round& r = s.agreed();
    members[i] = {s.hash, r.place, r.since, r.ready, nullptr};
    if (r.differs || !r.signature.is_of_core() || !s.absent[~s.turn & 1].none()) members[i].details = details_of(s);
    s.outstanding.remove(rank_);
    ready = settle(index, now) || ready;  // the others may already have submitted it again
  }
  if (!header_->joined.none()) ready = settle(header_->join_slot, now) || ready;  // it may have been waiting for that
  return members;
}

std::unique_ptr<Details> Board::details_of(Slot& s) const {
  const Round& r = s.agreed();
  const uint32_t which = ~s.turn & 1;
  auto details = std::make_unique<Details>();
  details->name = s.name;
  details->signature = r.signature;
  details->last = r.last;
  const int64_t* rows = s.rows + which * size_;
  for (int32_t rank = 0; rank < size_; ++rank) {
    const bool absent = s.absent[which].has(rank);
    details->rows.push_back(absent ? 0 : rows[rank]);
    if (absent) details->absent.push_back(rank);
  }
  details->difference = r.difference(details->name, label);
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

void Board::refuse(const std::string& name, const std::string& why, Limit limit) {
  const Lock lock(*this, limit);
  if (!lock) return;
  drop_refusals(name);
  auto& refused = header_->refusals[header_->refused++ % kRefusals];
  refused = {rank_, {}, {}};
  copy_text(name, refused.name);
  copy_text(why, refused.why);
}

std::vector<Refusal> Board::refusals() const {
  std::vector<Refusal> found;
  for (uint64_t i = 0; i < std::min(header_->refused, kRefusals); ++i)
    if (const auto& [rank, name, why] = header_->refusals[i]; rank >= 0) found.push_back({rank, name, why});
  return found;
}

std::vector<Stall> Board::stalls(double seconds, bool all, Limit limit) {
  std::vector<Stall> found;
  std::vector<Refusal> refused;
  {
    const Lock lock(*this, limit);
    const int64_t now = Timeline::now();
    if (lock) refused = refusals();
    for (int32_t i = 0; lock && i < header_->used; ++i) {
      const Slot& s = slot(i);
      if (!s.announced.none()) found.push_back(stall_of(s.name, s.current(), s.announced, header_->joined, size_, now));
    }
  }
  return overdue(found, refused, seconds, all ? -1 : rank_);
}

std::string Board::awaited_from(int32_t rank, Limit limit) {
  const Lock lock(*this, limit);
  for (int32_t i = 0; lock && i < header_->used; ++i) {
    const Slot& s = slot(i);
    const bool awaited = waits_for(s.current().signature.kind, s.announced, header_->joined, rank);
    if (!s.announced.none() && awaited) return s.name;
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
