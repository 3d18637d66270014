#include "executor/cuda/kernels/kernels_impl.h"

namespace pc::cuda {

Kernels kernels_of_small_reals(Dtype dtype, Operator op) {
  switch (dtype) {
    case Dtype::float16: return real_kernels<float16>(op);
    case Dtype::bfloat16: return real_kernels<bfloat16>(op);
    case Dtype::float8_e4m3fn: return real_kernels<float8_e4m3fn>(op);
    case Dtype::float8_e5m2: return real_kernels<float8_e5m2>(op);
    case Dtype::float8_e8m0fnu: return kernels_with<Elements<float8_e8m0fnu, Chosen<float8_e8m0fnu>>>();
    default: return {};
  }
}

}  // namespace pc::cuda
