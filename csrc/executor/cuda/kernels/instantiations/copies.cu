#include "executor/cuda/kernels/kernels_impl.h"

namespace pc::cuda {

Kernels kernels_of_copies() { return {run_schedule<Unreduced>, run_low_latency<Unreduced>}; }

}  // namespace pc::cuda
