#include "bindings/interpreter.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>
#include <utility>

#include "base/forks.h"

namespace py = pybind11;

namespace pc {
namespace {

using std::chrono::steady_clock;

constexpr auto kPatience = std::chrono::seconds(2);
constexpr auto kCheckEvery = std::chrono::microseconds(200);

// The mutex lets a pending request for the GIL finish first.  No thread waits for the mutex while it holds the GIL.
struct PythonEnd {
  std::mutex mutex;
  std::atomic<bool> ended{false};
  std::thread::id last;  // the thread that finalizes Python
  std::atomic<int> running{0};  // threads that run Python, or wait to continue it, in an Acquired
  bool without_me() const { return ended && std::this_thread::get_id() != last; }
  static PythonEnd& instance() { return of_this_process<PythonEnd>(); }
};

thread_local int depth = 0;  // Acquired of this thread, each in the one before, since the last Released

}  // namespace

void python_ends() {
  const py::gil_scoped_release release;
  PythonEnd& python = PythonEnd::instance();
  {
    const std::lock_guard lock(python.mutex);
    python.ended = true;
    python.last = std::this_thread::get_id();
  }
  const auto until = steady_clock::now() + kPatience;
  const int mine = depth > 0 ? 1 : 0;
  while (python.running > mine && steady_clock::now() < until) std::this_thread::sleep_for(kCheckEvery);
}

bool python_has_ended() { return PythonEnd::instance().ended; }

void wait_for_exit() {
  for (;;) pause();
}

Released::Released() : depth_(std::exchange(depth, 0)), state_(PyEval_SaveThread()) {
  if (depth_ > 0) --PythonEnd::instance().running;
}

Released::~Released() {
  PythonEnd& python = PythonEnd::instance();
  std::unique_lock lock(python.mutex);
  if (python.without_me()) {
    lock.unlock();
    wait_for_exit();
  }
  PyEval_RestoreThread(state_);
  depth = depth_;
  if (depth_ > 0) ++python.running;
}

Acquired::Acquired() {
  PythonEnd& python = PythonEnd::instance();
  const std::lock_guard lock(python.mutex);
  if (python.without_me()) return;
  gil_.emplace();
  if (depth++ == 0) ++python.running;
}

Acquired::~Acquired() {
  if (!gil_) return;
  PythonEnd& python = PythonEnd::instance();
  // Python has taken too long: it terminates this thread, which would release the GIL of another one.
  if (python.without_me() && PyGILState_Check() == 0) wait_for_exit();
  gil_.reset();
  if (--depth == 0) --python.running;
}

}  // namespace pc
