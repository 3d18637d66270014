// The end of a call that a thread of a framework waits for, without the GIL: Python would end a thread that waits in
// its code when it ends.
#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

namespace pc {

class Completion {
 public:
  // On any thread, once; nothing: the call has succeeded.
  void set(std::optional<std::string> failure) {
    const std::lock_guard lock(mutex_);
    failure_ = std::move(failure);
    complete_ = true;
    changed_.notify_all();  // under the lock: the waiter may free this object
  }
  std::optional<std::string> wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return complete_; });
    return failure_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool complete_ = false;
  std::optional<std::string> failure_;
};

}  // namespace pc
