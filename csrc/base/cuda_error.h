// CUDA's return codes as exceptions.
#pragma once

#include <cuda_runtime.h>

#include <string>

#include "base/status.h"

namespace pc::cuda {

struct CudaError : SystemFailure {
  CudaError(const std::string& what, cudaError_t found)
      : SystemFailure(what + ": " + cudaGetErrorName(found) + " (" + cudaGetErrorString(found) + ")"), code(found) {}
  cudaError_t code;
};

inline void check(cudaError_t result, const char* what) {
  if (result == cudaSuccess) return;
  (void)cudaGetLastError();  // or a later check would report this one again
  throw CudaError(what, result);
}

}  // namespace pc::cuda
