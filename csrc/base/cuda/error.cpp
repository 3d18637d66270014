#include "base/cuda/error.h"

namespace pc::cuda {
namespace {

// After which no CUDA call of the process succeeds.
bool is_kernel_fault(cudaError_t error) {
  return error == cudaErrorIllegalAddress || error == cudaErrorLaunchTimeout || error == cudaErrorAssert ||
         (error >= cudaErrorHardwareStackError && error <= cudaErrorLaunchFailure);
}

}  // namespace

void raise_error(cudaError_t result, const char* what) {
  (void)cudaGetLastError();  // a later check would report it again
  throw SystemFailure(std::string(what) + ": " + cudaGetErrorName(result) + " (" + cudaGetErrorString(result) + ")");
}

void require_no_pending_error() {
  const cudaError_t found = cudaPeekAtLastError();
  if (found == cudaSuccess || found == cudaErrorNotReady) return;  // not an error: the result of a query
  if (is_kernel_fault(found))
    raise_error(found,
                "a kernel has failed before this call, this program's or one of pycollective's (compute-sanitizer "
                "shows which); this process can no longer use CUDA");
  raise_error(found,
              "a CUDA error was pending before this call, left by an earlier kernel or call of this program and not "
              "by pycollective");
}

}  // namespace pc::cuda
