#include "base/cuda/error.h"

namespace pc::cuda {

CudaError::CudaError(const std::string& what, cudaError_t found)
    : SystemFailure(what + ": " + cudaGetErrorName(found) + " (" + cudaGetErrorString(found) + ")"), code(found) {}

void raise_error(cudaError_t result, const char* what) {
  (void)cudaGetLastError();  // a later check would report it again
  throw CudaError(what, result);
}

void require_no_pending_error() {
  const cudaError_t found = cudaPeekAtLastError();
  if (found == cudaSuccess || found == cudaErrorNotReady) return;  // not an error: the result of a query
  (void)cudaGetLastError();
  throw CudaError(
      "a CUDA error was pending before this call, left by an earlier kernel or call of this program and not "
      "by pycollective",
      found);
}

}  // namespace pc::cuda
