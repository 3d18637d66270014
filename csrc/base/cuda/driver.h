// Driver functions are looked up at run time: the module must load on machines without a driver.
#pragma once

#include "base/cuda/error.h"

namespace pc::cuda {

// `since`: the CUDA version (12000 is 12.0) that introduced the function or its current signature.
template <class F>
void driver_function(const char* name, F& into, [[maybe_unused]] unsigned since = 11000) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult status{};
#if CUDART_VERSION >= 12050
  check(cudaGetDriverEntryPointByVersion(name, &found, since, cudaEnableDefault, &status), name);
#else
  check(cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &status), name);
#endif
  if (status != cudaDriverEntryPointSuccess || found == nullptr)
    throw SystemFailure(std::string("the driver has no ") + name);
  into = reinterpret_cast<F>(found);
}

}  // namespace pc::cuda
