// The kernels, and which of them a call takes.
#pragma once

#include "dtype/table.h"
#include "executor/cuda/arguments.h"

namespace pc::cuda {

using ScheduleKernel = void (*)(Arguments);
using LowLatencyKernel = void (*)(LowLatencyArguments);

// Null where the operator does not take the type.
struct Kernels {
  ScheduleKernel schedule = nullptr;
  LowLatencyKernel low_latency = nullptr;
};

Kernels kernels_of_reals(Dtype dtype, Operator op);
Kernels kernels_of_small_reals(Dtype dtype, Operator op);
Kernels kernels_of_complex(Dtype dtype);
Kernels kernels_of_integers(Dtype dtype);
Kernels kernels_of_scaled_integers(Dtype dtype);

// Those that prescale and postscale go with: numbers and no bits, as on the CPU.
constexpr bool is_arithmetic(Operator op) {
  return op == Operator::sum || op == Operator::avg || op == Operator::prod || op == Operator::min ||
         op == Operator::max;
}

inline Operator on_booleans(Operator op) {
  switch (op) {
    case Operator::sum:
    case Operator::max:
    case Operator::lor: return Operator::bor;
    case Operator::prod:
    case Operator::min:
    case Operator::land: return Operator::band;
    default: return op;
  }
}

// `scaled`: some factor is not 1.  Booleans come as bytes with the operator of `on_booleans`.
inline Kernels kernels_for(Dtype dtype, Operator op, bool scaled) {
  switch (kind_of(dtype)) {
    case Kind::boolean: return kernels_of_integers(Dtype::uint8);
    case Kind::complex: return kernels_of_complex(dtype);
    case Kind::real: return size_of(dtype) < 4 ? kernels_of_small_reals(dtype, op) : kernels_of_reals(dtype, op);
    default: return scaled ? kernels_of_scaled_integers(dtype) : kernels_of_integers(dtype);
  }
}

}  // namespace pc::cuda
