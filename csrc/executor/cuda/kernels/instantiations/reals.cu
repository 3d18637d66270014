#include "executor/cuda/kernels/kernels_impl.h"

namespace pc::cuda {

Kernels kernels_of_reals(Dtype dtype, Operator op) {
  return dtype == Dtype::float32 ? real_kernels<float>(op) : real_kernels<double>(op);
}

}  // namespace pc::cuda
