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

// An error that other code of this thread has left behind would be taken for one of ours: it is reported as what it is.
inline void require_no_pending_error() {
  const cudaError_t found = cudaPeekAtLastError();
  if (found == cudaSuccess || found == cudaErrorNotReady) return;  // the latter is an answer, and often left behind
  (void)cudaGetLastError();
  throw CudaError(
      "a CUDA error was pending before this call, left by an earlier kernel or call of this program and not "
      "by pycollective",
      found);
}

}  // namespace pc::cuda
