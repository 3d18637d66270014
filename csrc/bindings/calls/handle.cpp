#include "bindings/calls/handle.h"

namespace pc {

void bind_handle(py::module_& m) {
  py::class_<Handle>(m, "Handle", "A nonblocking call in flight.")
      .def("wait", &Handle::wait, py::arg("timeout") = py::none(),
           "Block until the call has completed, at most `timeout` seconds. Raises what the call raised, or "
           "TimeoutError.")
      .def("test", &Handle::test, "Whether the call has completed (also when it failed).")
      .def("result", &Handle::result, py::arg("timeout") = py::none(), "wait(), then the call's result.");
}

}  // namespace pc
