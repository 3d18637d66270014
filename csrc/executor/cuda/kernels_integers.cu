#include "executor/cuda/kernels_impl.h"

namespace pc::cuda {

Kernels kernels_of_integers(Dtype dtype) {
  switch (dtype) {
    case Dtype::int8: return kernels_with<Elements<int8_t, Chosen<int8_t>>>();
    case Dtype::int16: return kernels_with<Elements<int16_t, Chosen<int16_t>>>();
    case Dtype::int32: return kernels_with<Elements<int32_t, Chosen<int32_t>>>();
    case Dtype::int64: return kernels_with<Elements<int64_t, Chosen<int64_t>>>();
    case Dtype::uint8: return kernels_with<Elements<uint8_t, Chosen<uint8_t>>>();
    case Dtype::uint16: return kernels_with<Elements<uint16_t, Chosen<uint16_t>>>();
    case Dtype::uint32: return kernels_with<Elements<uint32_t, Chosen<uint32_t>>>();
    case Dtype::uint64: return kernels_with<Elements<uint64_t, Chosen<uint64_t>>>();
    default: return {};
  }
}

}  // namespace pc::cuda
