#include "executor/cuda/kernels/kernels_impl.h"

namespace pc::cuda {
namespace {

template <class T>
Kernels weighted_sums() {
  return {run_schedule<WeightedElements<T>>, nullptr};
}

}  // namespace

Kernels kernels_of_weighted_sums(Dtype dtype) {
  switch (dtype) {
    case Dtype::float64: return weighted_sums<double>();
    case Dtype::float32: return weighted_sums<float>();
    case Dtype::float16: return weighted_sums<float16>();
    case Dtype::bfloat16: return weighted_sums<bfloat16>();
    case Dtype::float8_e4m3fn: return weighted_sums<float8_e4m3fn>();
    case Dtype::float8_e5m2: return weighted_sums<float8_e5m2>();
    case Dtype::float8_e8m0fnu: return weighted_sums<float8_e8m0fnu>();
    default: return {};
  }
}

}  // namespace pc::cuda
