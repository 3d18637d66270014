// The GIL, for threads that may be in the core when Python ends.  A thread that requested it afterwards would be
// terminated by Python, by unwinding that ends in std::terminate, or that releases a GIL which the thread does not
// hold.
#pragma once

#include <pybind11/pybind11.h>

#include <optional>

namespace pc {

// Registered with Python's atexit: from then on only the calling thread gets the GIL.  Waits for the threads that run
// Python at that time, for two seconds at most.
void python_ends();
bool python_has_ended();  // with or without the GIL
// For a thread that cannot continue without Python.
[[noreturn]] void wait_for_exit();

// Releases the GIL, as py::gil_scoped_release; a thread that is here when Python ends never returns.
class Released {
 public:
  Released();
  ~Released();
  Released(const Released&) = delete;

 private:
  int depth_;  // of the thread's Acquired
  PyThreadState* state_;
};

// Holds the GIL, unless Python has begun to end.  For threads that do not hold it, so that they may wait for it here.
class Acquired {
 public:
  Acquired();
  ~Acquired();
  Acquired(const Acquired&) = delete;
  explicit operator bool() const { return gil_.has_value(); }

 private:
  std::optional<pybind11::gil_scoped_acquire> gil_;
};

}  // namespace pc
