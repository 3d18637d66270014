// The lock of a board, shared by its ranks.
#include <sched.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <thread>

#include "base/pause.h"
#include "base/status.h"
#include "engine/negotiation/board_memory.h"
#include "engine/timeline.h"

namespace pc::engine {
namespace {

using std::chrono::steady_clock;

constexpr int kLooks = 64;        // at a lock that is held, before a waiter with a core of its own yields it
constexpr int kEagerTries = 100;  // to take the lock, before a waiter sleeps in between: about one turn of all ranks
constexpr auto kLockNap = std::chrono::microseconds(50);
constexpr auto kLockedOutEvery = std::chrono::milliseconds(5);
constexpr uint32_t kHolderBits = 16;
constexpr uint64_t kHolderMask = (uint64_t{1} << kHolderBits) - 1;

}  // namespace

Board::Lock::Lock(Board& board, Limit limit) : header_(*board.header_) {
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
  const int32_t holder = holder_of(header_);  // not written since
  pthread_mutex_unlock(&header_.mutex);
  const int32_t rank = holder < 0 && board.who_died ? board.who_died() : holder;
  throw CommunicatorFault(
      Fault::peer_lost, rank,
      (rank < 0 ? "a rank" : board.label(rank)) + " is gone: it ended while it wrote to the engine's board");
}

Board::Lock::~Lock() {
  if (!held_) return;
  header_.holding.store(header_.holding.load(std::memory_order_relaxed) & ~kHolderMask, std::memory_order_relaxed);
  pthread_mutex_unlock(&header_.mutex);
}

int32_t Board::Lock::holder_of(const Header& header) {
  return static_cast<int32_t>(header.holding.load(std::memory_order_relaxed) & kHolderMask) - 1;
}

// 0, EBUSY (limit reached) or another error.  The lock is held for microseconds, unless its holder is descheduled or
// stopped.  Waiters poll: timed mutex waits use a clock that may be set.
int Board::take_lock(Limit limit) {
  int code = pthread_mutex_trylock(&header_->mutex);
  for (int looks = 0; spins && code == EBUSY && looks < kLooks; ++looks) {
    pause();
    if (Lock::holder_of(*header_) < 0) code = pthread_mutex_trylock(&header_->mutex);
  }
  auto checked = Limit{};
  for (int tries = 0; code == EBUSY; ++tries) {
    if (tries < kEagerTries) sched_yield();
    else std::this_thread::sleep_for(kLockNap);
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

// How long this rank has observed the same holding of the lock, over all of its threads and attempts.
std::chrono::nanoseconds Board::same_holder_for() {
  const uint64_t holding = header_->holding.load(std::memory_order_relaxed);
  const int64_t now = Timeline::now();
  if (holding_seen_.exchange(holding, std::memory_order_relaxed) != holding)
    holding_since_.store(now, std::memory_order_relaxed);
  return std::chrono::nanoseconds(now - holding_since_.load(std::memory_order_relaxed));
}

int32_t Board::holder() const { return Lock::holder_of(*header_); }

bool Board::await_lock(Limit limit) { return static_cast<bool>(Lock(*this, limit)); }

}  // namespace pc::engine
