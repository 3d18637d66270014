#include "progress/progress.h"

#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "base/forks.h"
#include "base/threads.h"

namespace pc {
namespace {

using std::chrono::microseconds;

constexpr auto kYields = microseconds(100);  // without progress, before the thread sleeps between two polls
constexpr auto kPollNap = microseconds(50), kLongestPollNap = microseconds(1000);

thread_local bool runs_calls = false;  // the background thread
thread_local bool releases = false;

}  // namespace

// -- a task -------------------------------------------------------------------------------------------------------

void Task::begin_wait() const {
  team_->require_own();  // in a forked child it would never complete
  Progress::instance().takeover_.wait(submitted_);
  if (done()) return;
  team_->one_call.require_other();
  Progress::require_other_thread(team_->name());
}

void Task::raise() const {
  if (fault_) throw CommunicatorFault(*fault_);
}

bool Task::wait(double seconds) {
  begin_wait();
  auto until = Clock::time_point::max();
  if (seconds >= 0)
    until = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  if (!done() && !Progress::instance().drive(*this, until)) return false;
  raise();
  return true;
}

bool Task::attempt() {
  begin_wait();
  if (!done() && !Progress::instance().attempt(*this)) return false;
  raise();
  return true;
}

// Another thread of this rank may be in a blocking call that began before this one was submitted.
bool Task::take_turn(Effort effort, Clock::time_point until) {
  if (has_turn_) {
    team_->one_call.adopt();
    return true;
  }
  if ((has_turn_ = team_->one_call.try_lock())) return true;
  const auto start = Clock::now();
  while (!(has_turn_ = team_->one_call.try_lock())) {
    const auto now = Clock::now();
    if (effort != Effort::block || now >= until) return false;
    if (now - start < kYields) sched_yield();
    else std::this_thread::sleep_for(kPollNap);
  }
  return true;
}

bool Task::run(Effort effort, Clock::time_point until) noexcept {
  moved_ = false;
  if (!take_turn(effort, until)) return false;
  operation_.caller_waits = effort == Effort::block;
  const int64_t tile = operation_.cursor.tile;
  const int32_t position = operation_.cursor.position;
  try {
    Status status = Status::pending;
    if (effort == Effort::poll) status = team_->advance(operation_);
    else if (effort == Effort::attempt) status = team_->attempt(operation_);
    else status = team_->run_until(operation_, until);
    if (status == Status::pending) {
      moved_ = operation_.cursor.tile != tile || operation_.cursor.position != position;
      team_->one_call.disown();
      return false;
    }
  } catch (const CommunicatorFault& thrown) {
    fault_.emplace(thrown.fault, thrown.culprit, thrown.what());
  }
  team_->one_call.unlock();
  return true;
}

// -- callers ------------------------------------------------------------------------------------------------------

std::atomic<int> Progress::releasing{0};

void Progress::require_other_thread(const std::string& communicator) {
  if (runs_calls || releases) nested_call(communicator);
}

Progress& Progress::instance() {
  return of_this_process<Progress>();  // outlives main: the thread may still run while statics are destroyed
}

Progress::Queue& Progress::queue_of(const Team* team) {
  Queue* unused = nullptr;
  for (const auto& queue : queues_) {
    if (queue->team == team) return *queue;
    if (queue->team == nullptr && queue->waiters == 0) unused = queue.get();
  }
  if (unused == nullptr) unused = queues_.emplace_back(std::make_unique<Queue>()).get();
  unused->team = team;
  return *unused;
}

void Progress::submit(std::shared_ptr<Task> task) {
  // Before anything is queued: a call that is refused must not run later.
  std::call_once(started_, [this] { start_thread("pc-progress", [this] { loop(); }); });
  bool wake = false;
  const auto submitted = task->submitted_ = Clock::now();
  {
    const std::lock_guard lock(mutex_);
    Queue& queue = queue_of(task->team_.get());
    task->team_->queued.fetch_add(1, std::memory_order_acq_rel);
    Task* last = task.get();
    (queue.head == nullptr ? queue.head : queue.last->next_) = std::move(task);
    queue.last = last;
    wake = takeover_.submit(submitted);
  }
  if (wake) submitted_.notify_one();
}

// Runs the first call of a queue that no other thread drives, and removes it if it has completed.  `lock` is released
// meanwhile.
bool Progress::run_head(Queue& queue, Task::Effort effort, Clock::time_point until,
                        std::unique_lock<std::mutex>& lock) {
  const std::shared_ptr<Task> head = queue.head;
  queue.driven = true;
  lock.unlock();
  const bool through = head->run(effort, until);
  lock.lock();
  queue.driven = false;
  std::shared_ptr<void> keep;
  if (through) {
    queue.head = std::move(head->next_);
    if (queue.head == nullptr) queue.team = nullptr;
    if (effort == Task::Effort::poll) takeover_.took_over();
    keep = std::move(head->keep_);
    head->done_.store(true, std::memory_order_release);
    head->team_->queued.fetch_sub(1, std::memory_order_acq_rel);
  }
  if (queue.waiters > 0) queue.released.notify_all();
  if (keep != nullptr) {
    lock.unlock();
    release(std::move(keep));
    lock.lock();
  }
  return through;
}

void Progress::release(std::shared_ptr<void> keep) {
  releasing.fetch_add(1, std::memory_order_relaxed);
  const bool outer = std::exchange(releases, true);
  keep.reset();
  releases = outer;
  releasing.fetch_sub(1, std::memory_order_relaxed);
}

// Runs the task's communicator until the task has completed; false: not by `until`.
bool Progress::drive(Task& task, Clock::time_point until) {
  std::unique_lock lock(mutex_);
  while (!task.done()) {
    Queue& queue = queue_of(task.team_.get());
    if (!queue.driven) {
      run_head(queue, Task::Effort::block, until, lock);
    } else {
      ++queue.waiters;
      if (until == Clock::time_point::max()) queue.released.wait(lock);
      else queue.released.wait_until(lock, until);
      --queue.waiters;
    }
    if (Clock::now() < until || task.done()) continue;
    submitted_.notify_one();  // the thread continues it
    return false;
  }
  return true;
}

bool Progress::attempt(Task& task) {
  std::unique_lock lock(mutex_);
  if (task.done()) return true;
  Queue& queue = queue_of(task.team_.get());
  return !queue.driven && queue.head.get() == &task && run_head(queue, Task::Effort::attempt, {}, lock);
}

// -- the background thread ----------------------------------------------------------------------------------------

bool Progress::has_undriven() const {
  return std::any_of(queues_.begin(), queues_.end(), [](const auto& q) { return q->head != nullptr && !q->driven; });
}

// Polls the first call of each queue that nobody drives.  True if there is one.
bool Progress::poll_heads(std::unique_lock<std::mutex>& lock, bool& moved) {
  bool any = false;
  for (size_t i = 0; i < queues_.size(); ++i) {  // others may add queues meanwhile
    Queue& queue = *queues_[i];
    if (queue.driven || queue.head == nullptr || !Takeover::is_ripe(queue.head->submitted_, Clock::now())) continue;
    const std::shared_ptr<Task> head = queue.head;
    any = true;
    moved = run_head(queue, Task::Effort::poll, {}, lock) || head->moved_ || moved;
  }
  return any;
}

// Runs calls while there are some that nobody waits for.
void Progress::run_unawaited() {
  std::unique_lock lock(mutex_);
  auto moved_at = Clock::now();
  for (bool moved = false; poll_heads(lock, moved); moved = false) {
    lock.unlock();
    const auto now = Clock::now();
    if (moved) moved_at = now;
    else if (now - moved_at < kYields) sched_yield();
    else std::this_thread::sleep_for(std::clamp<Clock::duration>((now - moved_at) / 16, kPollNap, kLongestPollNap));
    lock.lock();
  }
}

void Progress::loop() {
  runs_calls = true;
  prctl(PR_SET_TIMERSLACK, 1000UL);  // nanoseconds; by default a nap lasts 50 microseconds longer
  for (;;) {
    run_unawaited();
    std::unique_lock lock(mutex_);
    const auto nap = takeover_.nap(has_undriven(), Clock::now());
    if (nap > Clock::duration::zero()) submitted_.wait_for(lock, nap);
    else submitted_.wait(lock);
  }
}

}  // namespace pc
