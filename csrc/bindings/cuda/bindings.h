// Shared by the binding files of pycollective._cuda: one file per subject, each with one function that registers it.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "base/status.h"

namespace py = pybind11;

namespace pc::cuda {

void bind_cuda_array(py::module_& m);
void bind_cuda_copies(py::module_& m);
void bind_cuda_custom(py::module_& m);
void bind_cuda_memory(py::module_& m);
void bind_cuda_nccl(py::module_& m);
void bind_cuda_runtime(py::module_& m);
void bind_cuda_team(py::module_& m);

}  // namespace pc::cuda
