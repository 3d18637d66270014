// The Python side of a nonblocking call.
#pragma once

#include <pybind11/pybind11.h>

#include <cmath>
#include <memory>
#include <optional>

#include "base/status.h"
#include "bindings/bindings.h"
#include "bindings/interpreter.h"
#include "progress/progress.h"

namespace pc {

class Handle {
 public:
  Handle(std::shared_ptr<Task> task, py::object result) : task_(std::move(task)), result_(std::move(result)) {}

  // Waits in short intervals, so that Ctrl-C is handled.
  // Throws InvalidArgument for a timeout of NaN.
  void wait(std::optional<double> timeout) const {
    if (timeout && std::isnan(*timeout)) throw InvalidArgument("timeout must be a number of seconds, not nan");
    // A small call often completes in less time than releasing the GIL takes.
    if (task_ == nullptr || task_->attempt()) return;
    const auto start = Clock::now();
    for (;;) {
      double turn = 0.1;
      if (timeout) turn = std::min(turn, *timeout - std::chrono::duration<double>(Clock::now() - start).count());
      if (wait_once(std::max(turn, 0.0))) return;
      if (PyErr_CheckSignals() != 0) throw py::error_already_set();
      if (timeout && turn <= 0) {
        const py::object type = py::module_::import("pycollective.errors").attr("TimeoutError");
        PyErr_SetString(type.ptr(), "the call has not completed yet; the handle can be waited for again");
        throw py::error_already_set();
      }
    }
  }
  bool test() const { return task_ == nullptr || task_->done(); }
  py::object result(std::optional<double> timeout) const {
    wait(timeout);
    return result_;
  }

 private:
  bool wait_once(double seconds) const {
    const Released released;
    return task_->wait(seconds);
  }
  std::shared_ptr<Task> task_;
  py::object result_;
};

template <> inline constexpr bool is_bound<Handle> = true;

}  // namespace pc
