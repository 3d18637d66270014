// The interpreter's lock, for threads that may be in the core when Python ends.  A thread that asked for it then would
// be ended by Python, by an unwinding that C++ answers with std::terminate.
#pragma once

#include <pybind11/pybind11.h>

#include <optional>

namespace pc {

// Registered with Python's atexit: from then on only the calling thread gets the lock.
void python_ends();

// Without the lock, as py::gil_scoped_release; a thread that is here when Python ends never comes back.
class Released {
 public:
  Released() : state_(PyEval_SaveThread()) {}
  ~Released();
  Released(const Released&) = delete;

 private:
  PyThreadState* state_;
};

// With the lock, or not at all once Python has begun to end.
class Acquired {
 public:
  Acquired();
  explicit operator bool() const { return gil_.has_value(); }

 private:
  std::optional<pybind11::gil_scoped_acquire> gil_;
};

}  // namespace pc
