// The progress thread: runs nonblocking calls in the background, those of one communicator in the order of submission,
// those of different ones concurrently.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "executor/cpu/team.h"

namespace pc {

// One submitted call.  Any holder can wait for it.
class Task {
 public:
  Task(std::shared_ptr<Team> team, Operation operation, std::shared_ptr<void> keep)
      : team_(std::move(team)),
        operation_(std::move(operation)),
        turn_(team_->one_call, std::defer_lock),
        keep_(std::move(keep)) {}

  bool done() const;
  // False if the call has not completed after `seconds` (< 0: no limit).  Throws what the call threw.
  bool wait(double seconds);

 private:
  friend class Progress;
  bool poll();           // true: completed or failed
  bool moved_ = false;   // whether the last poll made progress
  void complete(std::optional<CommunicatorFault> fault);

  std::shared_ptr<Team> team_;
  Operation operation_;
  std::unique_lock<CallMutex> turn_;  // from the first poll to the last
  std::shared_ptr<void> keep_;  // the arrays; dropped as soon as the call has completed
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::optional<CommunicatorFault> fault_;  // a value: the library counts references to shared exceptions
};

class Progress {
 public:
  static Progress& instance();  // of this process; its thread starts with the first call; never destroyed
  void submit(std::shared_ptr<Task> task);
  // Throws on the progress thread, which cannot wait for itself: objects that it releases may have finalizers.
  static void require_other_thread(const std::string& communicator);
  static std::atomic<bool> releasing;  // whether it is releasing objects

 private:
  struct Queue {
    const Team* team;
    std::deque<std::shared_ptr<Task>> tasks;
  };
  void loop();
  bool poll_heads();

  std::once_flag started_;
  std::mutex mutex_;
  std::condition_variable submitted_;
  std::vector<Queue> queues_;
};

}  // namespace pc
