// Nonblocking calls in progress: those of one communicator run in the order of submission, those of different ones
// concurrently.
//
// A thread that waits for a call runs it, and those before it; so a call that is awaited soon costs no switch of
// threads. A background thread runs calls that nobody waits for: see base/takeover.h.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/takeover.h"
#include "executor/cpu/team.h"

namespace pc {

// One submitted call.  Any holder can wait for it.
class Task {
 public:
  Task(std::shared_ptr<Team> team, Operation operation, std::shared_ptr<void> keep)
      : team_(std::move(team)), operation_(std::move(operation)), keep_(std::move(keep)) {}

  bool done() const { return done_.load(std::memory_order_acquire); }
  // False if the call has not completed after `seconds` (< 0: no limit).  Throws what the call threw.
  bool wait(double seconds);
  // The same if it is the communicator's next and its peers are about to arrive; false at once otherwise.  For callers
  // that hold the GIL.
  bool attempt();

 private:
  friend class Progress;
  enum class Effort : uint8_t { poll, attempt, block };
  void begin_wait() const;
  void raise() const;
  // By the thread that drives its queue.  True: completed or failed.
  bool run(Effort effort, Clock::time_point until) noexcept;
  bool take_turn(Effort effort, Clock::time_point until);

  std::shared_ptr<Team> team_;
  Operation operation_;
  bool has_turn_ = false;  // holds team_->one_call, from the first step to the last
  bool moved_ = false;  // whether the last poll made progress
  std::shared_ptr<void> keep_;  // the arrays; dropped as soon as the call has completed
  std::atomic<bool> done_{false};
  std::optional<CommunicatorFault> fault_;  // once done; a value: the library counts references to shared exceptions
  std::shared_ptr<Task> next_;  // in its queue
  Clock::time_point submitted_{};
};

class Progress {
 public:
  static Progress& instance();  // of this process; its thread starts with the first call; never destroyed
  void submit(std::shared_ptr<Task> task);
  // Throws on the background thread, which cannot wait for itself, and on a thread that releases the arrays of a call:
  // they may have finalizers, and when these run differs between ranks.
  static void require_other_thread(const std::string& communicator);
  static std::atomic<int> releasing;  // threads that release arrays

 private:
  friend class Task;
  // The calls of one communicator that have not completed.  Kept when empty, for the next communicator that needs one.
  struct Queue {
    const Team* team = nullptr;
    std::shared_ptr<Task> head;
    Task* last = nullptr;
    bool driven = false;  // a thread is running the head
    int waiters = 0;
    std::condition_variable released;  // no longer driven, or a call has completed
  };
  Queue& queue_of(const Team* team);
  bool drive(Task& task, Clock::time_point until);
  bool attempt(Task& task);
  static void release(std::shared_ptr<void> keep);
  bool run_head(Queue& queue, Task::Effort effort, Clock::time_point until, std::unique_lock<std::mutex>& lock);
  void loop();
  void run_unawaited();
  bool poll_heads(std::unique_lock<std::mutex>& lock, bool& moved);
  bool has_undriven() const;

  std::once_flag started_;
  std::mutex mutex_;
  std::condition_variable submitted_;
  std::vector<std::unique_ptr<Queue>> queues_;
  Takeover takeover_;
};

}  // namespace pc
