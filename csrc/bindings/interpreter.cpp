#include "bindings/interpreter.h"

#include <unistd.h>

#include <mutex>
#include <thread>

#include "base/forks.h"

namespace py = pybind11;

namespace pc {
namespace {

// The mutex lets a request for the lock that is under way finish first.  Nobody who has the lock waits for the mutex.
struct PythonEnd {
  std::mutex mutex;
  bool ended = false;
  std::thread::id last;  // the thread in which Python ends
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

Released::~Released() {
  PythonEnd& python = PythonEnd::instance();
  std::unique_lock lock(python.mutex);
  if (python.without_me()) {
    lock.unlock();
    for (;;) pause();  // until the process is gone
  }
  PyEval_RestoreThread(state_);
}

Acquired::Acquired() {
  PythonEnd& python = PythonEnd::instance();
  const std::lock_guard lock(python.mutex);
  if (!python.without_me()) gil_.emplace();
}

}  // namespace pc
