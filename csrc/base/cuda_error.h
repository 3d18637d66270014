// CUDA's return codes as exceptions.
#pragma once

#include <cuda_runtime.h>

#include <string>

#include "base/status.h"

namespace pc::cuda {

struct CudaError : SystemFailure {
  CudaError(const std::string& what, cudaError_t found);
  cudaError_t code;
};

// In a source of its own: what nvcc compiles is linked to what another compiler made with another standard library
// (tools/wheels.py), hence it neither has nor passes objects of that library.
[[noreturn]] void raise_error(cudaError_t result, const char* what);

inline void check(cudaError_t result, const char* what) {
  if (result != cudaSuccess) raise_error(result, what);
}

}  // namespace pc::cuda
