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

// `scaled`: some factor is not 1.  Booleans come as bytes with the operator of `on_booleans`.
Kernels kernels_of_reals(Dtype dtype, Operator op);
Kernels kernels_of_small_reals(Dtype dtype, Operator op);
Kernels kernels_of_integers(Dtype dtype, bool scaled);

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

inline Kernels kernels_for(Dtype dtype, Operator op, bool scaled) {
  switch (dtype) {
    case Dtype::bool_: return kernels_of_integers(Dtype::uint8, false);
    case Dtype::float32:
    case Dtype::float64: return kernels_of_reals(dtype, op);
    case Dtype::float16:
    case Dtype::bfloat16:
    case Dtype::float8_e4m3fn:
    case Dtype::float8_e5m2: return kernels_of_small_reals(dtype, op);
    default: return kernels_of_integers(dtype, scaled);
  }
}

}  // namespace pc::cuda
