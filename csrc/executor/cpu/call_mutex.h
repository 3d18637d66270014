// Serializes the calls of a rank's threads.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>

#include "base/status.h"

namespace pc {

[[noreturn]] inline void nested_call(const std::string& communicator) {
  throw CommunicatorFault(Fault::nested, -1,
                          "a collective was called on communicator '" + communicator +
                              "' from within another one of the same thread (a signal handler, callback or finalizer)");
}

// A mutex that knows its owner: a thread that locks it again would deadlock; it gets an error instead.  The owner is
// checked only when the mutex is taken.  A call that several threads advance in turn passes it on: std::mutex must be
// unlocked by the thread that locked it.
class CallMutex {
 public:
  explicit CallMutex(const std::string& communicator) : communicator_(communicator) {}

  bool try_lock() {
    uint32_t expected = kFree;
    if (!state_.compare_exchange_strong(expected, kLocked, std::memory_order_acquire)) {
      require_other();
      return false;
    }
    adopt();
    return true;
  }
  void lock() {
    if (try_lock()) return;
    while (state_.exchange(kAwaited, std::memory_order_acquire) != kFree) wait();
    adopt();
  }
  void unlock() {
    disown();
    if (state_.exchange(kFree, std::memory_order_release) == kAwaited) wake();
  }
  // It stays locked, between two threads' parts of a call.
  void disown() { owner_.store({}, std::memory_order_relaxed); }
  void adopt() { owner_.store(std::this_thread::get_id(), std::memory_order_relaxed); }
  // A thread finds its own id there only if it wrote it.
  bool mine() const { return owner_.load(std::memory_order_relaxed) == std::this_thread::get_id(); }
  void require_other() const {
    if (mine()) nested_call(communicator_);
  }

 private:
  static constexpr uint32_t kFree = 0, kLocked = 1, kAwaited = 2;  // awaited: threads may sleep on it
  void wait() { syscall(SYS_futex, &state_, FUTEX_WAIT_PRIVATE, kAwaited, nullptr, nullptr, 0); }
  void wake() { syscall(SYS_futex, &state_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0); }

  std::atomic<uint32_t> state_{kFree};
  std::atomic<std::thread::id> owner_{};  // default: none
  const std::string& communicator_;       // its name
};

}  // namespace pc
