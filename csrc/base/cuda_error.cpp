#include "base/cuda_error.h"

namespace pc::cuda {

CudaError::CudaError(const std::string& what, cudaError_t found)
    : SystemFailure(what + ": " + cudaGetErrorName(found) + " (" + cudaGetErrorString(found) + ")"), code(found) {}

void raise_error(cudaError_t result, const char* what) {
  (void)cudaGetLastError();  // or a later check would report this one again
  throw CudaError(what, result);
}

}  // namespace pc::cuda
