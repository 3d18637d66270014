// The kernels, and their selection for a call.
#pragma once

#include "dtype/table.h"
#include "executor/cuda/kernels/arguments.h"

namespace pc::cuda {

using ScheduleKernel = void (*)(Arguments);
using LowLatencyKernel = void (*)(LowLatencyArguments);

// Null if the operator does not support the type; `low_latency` also if a packet is too small for an element.
struct Kernels {
  ScheduleKernel schedule = nullptr;
  LowLatencyKernel low_latency = nullptr;
};

Kernels kernels_of_copies();  // for calls that reduce nothing, whatever the type
Kernels kernels_of_reals(Dtype dtype, Operator op);
Kernels kernels_of_small_reals(Dtype dtype, Operator op);
Kernels kernels_of_complex(Dtype dtype);
Kernels kernels_of_integers(size_t bytes);  // of an element; signed or not
Kernels kernels_of_scaled_integers(Dtype dtype);
Kernels kernels_of_weighted_sums(Dtype dtype);  // null if not a real type; no low-latency kernel

// Operators that support prescale and postscale: arithmetic rather than bitwise ones, as on the CPU.
constexpr bool is_arithmetic(Operator op) {
  return op == Operator::sum || op == Operator::avg || op == Operator::prod || op == Operator::min ||
         op == Operator::max;
}

constexpr int32_t kSignedMin = static_cast<int32_t>(Operator::count), kSignedMax = kSignedMin + 1;

// The operator number passed to a kernel. Unscaled integers are passed as unsigned ones, which differ only in order;
// booleans as bytes.
constexpr int32_t number_of(Operator op, Dtype dtype, bool scaled) {
  const Kind kind = kind_of(dtype);
  if (kind == Kind::signed_integer && !scaled) {
    if (op == Operator::min) return kSignedMin;
    if (op == Operator::max) return kSignedMax;
  }
  if (kind == Kind::boolean) {
    if (op == Operator::sum || op == Operator::max || op == Operator::lor) return static_cast<int32_t>(Operator::bor);
    if (op == Operator::prod || op == Operator::min || op == Operator::land)
      return static_cast<int32_t>(Operator::band);
  }
  return static_cast<int32_t>(op);
}

// `scaled`: a factor differs from 1.
inline Kernels kernels_for(Dtype dtype, Operator op, bool scaled) {
  switch (kind_of(dtype)) {
    case Kind::complex: return kernels_of_complex(dtype);
    case Kind::real: return size_of(dtype) < 4 ? kernels_of_small_reals(dtype, op) : kernels_of_reals(dtype, op);
    default: return scaled ? kernels_of_scaled_integers(dtype) : kernels_of_integers(size_of(dtype));
  }
}

}  // namespace pc::cuda
