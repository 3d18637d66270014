// The GIL, for threads that may be in the core when Python ends.  A thread that requested it afterwards would be
// terminated by Python, by unwinding that ends in std::terminate.
#pragma once

#include <pybind11/pybind11.h>

#include <optional>

namespace pc {

// Registered with Python's atexit: from then on only the calling thread gets the GIL.
void python_ends();
bool python_has_ended();  // with or without the GIL

// Releases the GIL, as py::gil_scoped_release; a thread that is here when Python ends never returns.
class Released {
 public:
  Released() : state_(PyEval_SaveThread()) {}
  ~Released();
  Released(const Released&) = delete;

 private:
  PyThreadState* state_;
};

// Holds the GIL, unless Python has begun to end.
class Acquired {
 public:
  Acquired();
  explicit operator bool() const { return gil_.has_value(); }

 private:
  std::optional<pybind11::gil_scoped_acquire> gil_;
};

}  // namespace pc
