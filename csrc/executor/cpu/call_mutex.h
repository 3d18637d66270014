// Serializes the calls of a rank's threads.
#pragma once

#include <atomic>
#include <mutex>
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
// checked only when the mutex is taken.
class CallMutex {
 public:
  explicit CallMutex(const std::string& communicator) : communicator_(communicator) {}

  bool try_lock() {
    if (!mutex_.try_lock()) {
      require_other();
      return false;
    }
    owner_.store(std::this_thread::get_id(), std::memory_order_relaxed);
    return true;
  }
  void lock() {
    require_other();
    mutex_.lock();
    owner_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  }
  void unlock() {
    owner_.store({}, std::memory_order_relaxed);
    mutex_.unlock();
  }
  // A thread finds its own id there only if it wrote it.
  bool mine() const { return owner_.load(std::memory_order_relaxed) == std::this_thread::get_id(); }
  void require_other() const {
    if (mine()) nested_call(communicator_);
  }

 private:
  std::mutex mutex_;
  std::atomic<std::thread::id> owner_{};  // default: unlocked
  const std::string& communicator_;       // its name
};

}  // namespace pc
