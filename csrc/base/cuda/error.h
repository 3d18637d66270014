// CUDA's return codes as exceptions.
#pragma once

#include <cuda_runtime.h>

#include "base/status.h"

namespace pc::cuda {

// Throws SystemFailure.  In a separate source file: nvcc's output is linked with code built by another compiler against
// another standard library (tools/wheels/make_wheels.py), so it must not create or pass objects of that library.
[[noreturn]] void raise_error(cudaError_t result, const char* what);

inline void check(cudaError_t result, const char* what) {
  if (result != cudaSuccess) raise_error(result, what);
}

// An error left pending by other code of this thread must not be attributed to us: it is reported as such.
void require_no_pending_error();

}  // namespace pc::cuda
