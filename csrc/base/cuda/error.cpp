#include "base/cuda/error.h"

namespace pc::cuda {

void raise_error(cudaError_t result, const char* what) {
  (void)cudaGetLastError();  // a later check would report it again
  throw SystemFailure(std::string(what) + ": " + cudaGetErrorName(result) + " (" + cudaGetErrorString(result) + ")");
}

void require_no_pending_error() {
  const cudaError_t found = cudaPeekAtLastError();
  if (found == cudaSuccess || found == cudaErrorNotReady) return;  // not an error: the result of a query
  raise_error(found,
              "a CUDA error was pending before this call, left by an earlier kernel or call of this program and not "
              "by pycollective");
}

}  // namespace pc::cuda
