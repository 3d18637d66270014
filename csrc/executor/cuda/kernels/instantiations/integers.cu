#include "executor/cuda/kernels/kernels_impl.h"

namespace pc::cuda {

Kernels kernels_of_integers(size_t bytes) {
  switch (bytes) {
    case 1: return kernels_with<Elements<uint8_t, Chosen<uint8_t>>>();
    case 2: return kernels_with<Elements<uint16_t, Chosen<uint16_t>>>();
    case 4: return kernels_with<Elements<uint32_t, Chosen<uint32_t>>>();
    default: return kernels_with<Elements<uint64_t, Chosen<uint64_t>>>();
  }
}

}  // namespace pc::cuda
