// Copies of arrays that the executor on the CPU stages through host memory.
#include "bindings/cuda/bindings.h"
#include "executor/cuda/staging_copies.h"

namespace pc::cuda {

void bind_cuda_copies(py::module_& m) {
  const auto free_of_gil = py::call_guard<py::gil_scoped_release>();
  py::class_<StagingCopies>(m, "StagingCopies", py::module_local(), py::release_gil_before_calling_cpp_dtor(),
                            "Copies between a device and pinned host memory, in two streams of their own.")
      .def(py::init<int>(), py::arg("device"))
      .def_property_readonly(
          "address", [](const StagingCopies& self) { return reinterpret_cast<uintptr_t>(&self.table()); },
          "For _core.Team.call, while this object exists.")
      .def_property_readonly("memory_bytes", &StagingCopies::memory_bytes, "Pinned memory allocated so far.")
      .def(
          "hold_back",
          [](StagingCopies& self, uintptr_t stream) { self.hold_back(reinterpret_cast<cudaStream_t>(stream)); },
          py::arg("stream"), "Make the stream wait for all copies so far.")
      .def("drain", &StagingCopies::drain, free_of_gil, "Wait for all copies so far.");
}

}  // namespace pc::cuda
