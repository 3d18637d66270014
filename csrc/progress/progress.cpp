#include "progress/progress.h"

#include <sched.h>

#include <algorithm>
#include <thread>

#include "base/forks.h"

namespace pc {

bool Task::done() const {
  const std::lock_guard lock(mutex_);
  return done_;
}

bool Task::wait(double seconds) {
  team_->require_own();  // in a forked child it would never complete
  if (!done()) {
    team_->one_call.require_other();
    Progress::require_other_thread(team_->name());
  }
  std::unique_lock lock(mutex_);
  const auto through = [this] { return done_; };
  if (seconds < 0) {
    changed_.wait(lock, through);
  } else if (!changed_.wait_for(lock, std::chrono::duration<double>(seconds), through)) {
    return false;
  }
  if (fault_) throw CommunicatorFault(*fault_);
  return true;
}

bool Task::poll() {
  if (!turn_.owns_lock() && !turn_.try_lock()) return false;
  std::optional<CommunicatorFault> fault;
  const int64_t tile = operation_.cursor.tile;
  const int32_t position = operation_.cursor.position;
  try {
    if (team_->advance(operation_) == Status::pending) {
      moved_ = operation_.cursor.tile != tile || operation_.cursor.position != position;
      return false;
    }
  } catch (const CommunicatorFault& thrown) {
    fault.emplace(thrown.fault, thrown.culprit, thrown.what());
  }
  turn_.unlock();
  complete(std::move(fault));
  return true;
}

void Task::complete(std::optional<CommunicatorFault> fault) {
  std::shared_ptr<void> keep;
  {
    const std::lock_guard lock(mutex_);
    done_ = true;
    fault_ = std::move(fault);
    keep = std::move(keep_);
  }
  team_->queued.fetch_sub(1, std::memory_order_acq_rel);
  changed_.notify_all();
  Progress::releasing.store(true, std::memory_order_relaxed);
  keep.reset();
  Progress::releasing.store(false, std::memory_order_relaxed);
}

namespace {

std::atomic<std::thread::id> progress_thread{};

}  // namespace

std::atomic<bool> Progress::releasing{false};

void Progress::require_other_thread(const std::string& communicator) {
  if (progress_thread.load(std::memory_order_relaxed) == std::this_thread::get_id()) nested_call(communicator);
}

Progress& Progress::instance() {
  return of_this_process<Progress>();  // outlives main: the thread may still run while statics are destroyed
}

void Progress::submit(std::shared_ptr<Task> task) {
  {
    const std::lock_guard lock(mutex_);
    const Team* team = task->team_.get();
    auto queue = std::find_if(queues_.begin(), queues_.end(), [&](const Queue& q) { return q.team == team; });
    if (queue == queues_.end()) queue = queues_.insert(queues_.end(), Queue{team, {}});
    task->team_->queued.fetch_add(1, std::memory_order_acq_rel);
    queue->tasks.push_back(std::move(task));
  }
  submitted_.notify_one();
  std::call_once(started_, [this] { std::thread([this] { loop(); }).detach(); });
}

void Progress::loop() {
  progress_thread.store(std::this_thread::get_id(), std::memory_order_relaxed);
  auto idle_since = Clock::now();
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      submitted_.wait(lock, [this] { return !queues_.empty(); });
    }
    if (poll_heads()) {
      idle_since = Clock::now();
    } else if (Clock::now() - idle_since < std::chrono::microseconds(100)) {
      sched_yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
}

// Polls each team's first task.  True if one of them made progress.
bool Progress::poll_heads() {
  std::vector<std::shared_ptr<Task>> heads;
  {
    const std::lock_guard lock(mutex_);
    for (const Queue& queue : queues_) heads.push_back(queue.tasks.front());
  }
  bool any = false;
  for (const auto& task : heads) {
    const bool through = task->poll();
    any = any || through || task->moved_;
    if (!through) continue;
    const std::lock_guard lock(mutex_);
    const auto queue =
        std::find_if(queues_.begin(), queues_.end(), [&](const Queue& q) { return q.team == task->team_.get(); });
    queue->tasks.pop_front();
    if (queue->tasks.empty()) queues_.erase(queue);
  }
  return any;
}

}  // namespace pc
