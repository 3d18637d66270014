// A user-defined operator, as linked by comm/cuda/operators.py.
#include "executor/cuda/custom/custom.h"

#include "bindings/cuda/bindings.h"

namespace pc::cuda {

void bind_cuda_custom(py::module_& m) {
  m.def(
      "custom_program", [](const std::string& dtype) { return py::bytes(custom_program(dtype_named(dtype))); },
      py::arg("dtype"), "The kernels of an element type, as a fatbin of LTO-IR that lacks the function pc_operator.");
  m.def(
      "load_custom",
      [](const std::string& dtype, const py::bytes& image) { return load_custom(dtype_named(dtype), image); },
      py::arg("dtype"), py::arg("image"), "The linked image, as Team.plan takes it.");
}

}  // namespace pc::cuda
