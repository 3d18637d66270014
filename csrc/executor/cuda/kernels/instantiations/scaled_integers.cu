#include "executor/cuda/kernels/kernels_impl.h"

namespace pc::cuda {

Kernels kernels_of_scaled_integers(Dtype dtype) {
  switch (dtype) {
    case Dtype::int8: return kernels_with<ScaledIntegers<int8_t>>();
    case Dtype::int16: return kernels_with<ScaledIntegers<int16_t>>();
    case Dtype::int32: return kernels_with<ScaledIntegers<int32_t>>();
    case Dtype::int64: return kernels_with<ScaledIntegers<int64_t>>();
    case Dtype::uint8: return kernels_with<ScaledIntegers<uint8_t>>();
    case Dtype::uint16: return kernels_with<ScaledIntegers<uint16_t>>();
    case Dtype::uint32: return kernels_with<ScaledIntegers<uint32_t>>();
    case Dtype::uint64: return kernels_with<ScaledIntegers<uint64_t>>();
    default: return {};
  }
}

}  // namespace pc::cuda
