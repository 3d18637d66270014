// The Python side of a nonblocking call.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "bindings/bindings.h"
#include "progress/progress.h"

namespace pc {

// A Handle of a task, or of a call that has completed if it is null; `result`: what the blocking call would return.
// Throws error_already_set.
py::object make_handle(std::shared_ptr<Task> task, py::object result);
// Blocks until the task has completed, at most `seconds` (nothing: until the call's own deadline), in short intervals,
// so that Ctrl-C is handled.  Throws what the call threw, error_already_set for TimeoutError and signals, and
// InvalidArgument for a NaN.
void wait_for(Task& task, std::optional<double> seconds);

}  // namespace pc
