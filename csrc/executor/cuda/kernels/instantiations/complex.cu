#include "executor/cuda/kernels/kernels_impl.h"

namespace pc::cuda {

Kernels kernels_of_complex(Dtype dtype) {
  switch (dtype) {
    case Dtype::complex64: return kernels_with<Elements<complex64, Chosen<complex64>>>();
    case Dtype::complex128: return kernels_with<Elements<complex128, Chosen<complex128>>>();
    default: return {};
  }
}

}  // namespace pc::cuda
