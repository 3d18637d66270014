#include "executor/cuda/kernels_impl.h"

namespace pc::cuda {

Kernels kernels_of_integers(Dtype dtype, bool scaled) {
  switch (dtype) {
    case Dtype::int8: return integer_kernels<int8_t>(scaled);
    case Dtype::int16: return integer_kernels<int16_t>(scaled);
    case Dtype::int32: return integer_kernels<int32_t>(scaled);
    case Dtype::int64: return integer_kernels<int64_t>(scaled);
    case Dtype::uint8: return integer_kernels<uint8_t>(scaled);
    case Dtype::uint16: return integer_kernels<uint16_t>(scaled);
    case Dtype::uint32: return integer_kernels<uint32_t>(scaled);
    case Dtype::uint64: return integer_kernels<uint64_t>(scaled);
    default: return {};
  }
}

}  // namespace pc::cuda
