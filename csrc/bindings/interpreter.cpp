#include "bindings/interpreter.h"

#include <unistd.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "base/forks.h"

namespace py = pybind11;

namespace pc {
namespace {

// The mutex lets a pending request for the GIL finish first.  No thread waits for the mutex while it holds the GIL.
struct PythonEnd {
  std::mutex mutex;
  std::atomic<bool> ended{false};
  std::thread::id last;  // the thread that finalizes Python
  bool without_me() const { return ended && std::this_thread::get_id() != last; }
  static PythonEnd& instance() { return of_this_process<PythonEnd>(); }
};

}  // namespace

void python_ends() {
  const py::gil_scoped_release release;
  PythonEnd& python = PythonEnd::instance();
  const std::lock_guard lock(python.mutex);
  python.ended = true;
  python.last = std::this_thread::get_id();
}

bool python_has_ended() { return PythonEnd::instance().ended; }

Released::~Released() {
  PythonEnd& python = PythonEnd::instance();
  std::unique_lock lock(python.mutex);
  if (python.without_me()) {
    lock.unlock();
    for (;;) pause();  // until the process exits
  }
  PyEval_RestoreThread(state_);
}

Acquired::Acquired() {
  PythonEnd& python = PythonEnd::instance();
  const std::lock_guard lock(python.mutex);
  if (!python.without_me()) gil_.emplace();
}

}  // namespace pc
