// pycollective._cuda: loads without a driver; functions that need a device raise if there is none.
#include "bindings/cuda/bindings.h"

namespace pc::cuda {
namespace {

void translate(std::exception_ptr pointer) {
  const auto raise = [](const char* name, const std::exception& error) {
    const py::object type = py::module_::import("pycollective.errors").attr(name);
    PyErr_SetString(type.ptr(), error.what());
  };
  try {
    std::rethrow_exception(pointer);
  } catch (const InvalidArgument& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
  } catch (const WrongType& error) {
    PyErr_SetString(PyExc_TypeError, error.what());
  } catch (const SystemFailure& error) {
    raise("CommunicatorError", error);
  }
}

}  // namespace
}  // namespace pc::cuda

PYBIND11_MODULE(_cuda, m) {
  m.doc() = "The GPU side of pycollective: kernels, windows and launches.";
  py::register_local_exception_translator(pc::cuda::translate);
  pc::cuda::bind_cuda_runtime(m);
  pc::cuda::bind_cuda_memory(m);
  pc::cuda::bind_cuda_array(m);
  pc::cuda::bind_cuda_copies(m);
  pc::cuda::bind_cuda_team(m);
  pc::cuda::bind_cuda_custom(m);
  pc::cuda::bind_cuda_nccl(m);
}
