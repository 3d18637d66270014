// The element operations: how each type is widened, reduced, scaled and rounded, the same as on the CPU.
#pragma once

#include <type_traits>

#include "dtype/convert.h"
#include "dtype/operators.h"
#include "dtype/table.h"
#include "executor/cuda/kernels/kernels.h"

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

namespace pc::cuda {

template <class T>
constexpr Kind kind_of() {
#define PC_KIND(name, type, kind) \
  if constexpr (std::is_same_v<T, type>) return Kind::kind;
  PC_DTYPES(PC_KIND)
#undef PC_KIND
}

template <class T> constexpr bool has_factors = kind_of<T>() == Kind::real || kind_of<T>() == Kind::complex;
template <class T> struct RealOf { using type = T; };
template <class Real> struct RealOf<Complex<Real>> { using type = Real; };

// 16- and 8-bit floating-point types are reduced in float and rounded once; the rest in their own type.
template <class T>
using Accumulator = std::conditional_t<std::is_class_v<T> && kind_of<T>() != Kind::complex, float, T>;

template <class T>
PC_FN Accumulator<T> widen(T v) {
  if constexpr (std::is_same_v<T, bfloat16>) return to_float(v);
  else if constexpr (std::is_same_v<T, float8_e4m3fn>) return E4M3FN::decode(v.bits);
  else if constexpr (std::is_same_v<T, float8_e5m2>) return E5M2::decode(v.bits);
  else if constexpr (std::is_same_v<T, float8_e8m0fnu>) return E8M0FNU::decode(v.bits);
#if defined(__CUDACC__)
  else if constexpr (std::is_same_v<T, float16>) return __half2float(__ushort_as_half(v.bits));
#else
  else if constexpr (std::is_same_v<T, float16>) return to_float(v);
#endif
  else return v;
}

template <class T>
PC_FN T narrow(Accumulator<T> a) {
#if defined(__CUDACC__)  // hardware conversions; they differ from the CPU's only in a NaN's payload
  if constexpr (std::is_same_v<T, bfloat16>) return {__bfloat16_as_ushort(__float2bfloat16_rn(a))};
  else if constexpr (std::is_same_v<T, float16>) return {__half_as_ushort(__float2half_rn(a))};
  else
#endif
      if constexpr (!std::is_same_v<T, Accumulator<T>>) {
    T v;
    from_float(a, v);
    return v;
  } else {
    return a;
  }
}

// What limits the reduction of elements, which decides how much of it is unrolled: memory, memory for two sources and
// arithmetic for more, or arithmetic only.
enum class Limit { memory, mixed, arithmetic };

// An operator that the kernel was compiled for.
template <class Functor>
struct Fixed {
  static constexpr bool chosen = false;
  PC_FN explicit Fixed(int32_t) {}
  template <class A> PC_FN A first(A a) const { return Functor::first(a); }
  template <class A> PC_FN A apply(A a, A b) const { return Functor::apply(a, b); }
};

// An operator chosen at run time: all lanes take the same branch.  `Arithmetic`: among those that support scaling.
template <class T, bool Arithmetic = false>
struct Chosen {
  static constexpr bool chosen = true;
  int32_t op;
  PC_FN explicit Chosen(int32_t number) : op(number) {}
  template <class A>
  PC_FN A first(A a) const {
    if constexpr (Arithmetic || kind_of<T>() == Kind::complex) {
      return a;
    } else {
      const bool logical = op == static_cast<int32_t>(Operator::land) || op == static_cast<int32_t>(Operator::lor);
      return logical ? Logical::first(a) : a;
    }
  }
  template <class A>
  PC_FN A apply(A a, A b) const {
    A acc[] = {a}, v[] = {b};
    apply_to_all(*this, acc, v);
    return acc[0];
  }
};

// acc[i] = acc[i] op v[i]
template <class Op, class A, int N>
PC_FN void apply_to_all(const Op& op, A (&acc)[N], const A (&v)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) acc[i] = op.apply(acc[i], v[i]);
}

// Compares unsigned numbers as if their bits were signed.
template <class Functor>
struct AsSigned {
  template <class A>
  PC_FN A apply(A a, A b) const {
    using Signed = std::make_signed_t<A>;
    return static_cast<A>(Functor::apply(static_cast<Signed>(a), static_cast<Signed>(b)));
  }
};

// One branch for all elements.
template <class T, bool Arithmetic, class A, int N>
PC_FN void apply_to_all(const Chosen<T, Arithmetic>& chosen, A (&acc)[N], const A (&v)[N]) {
  constexpr uint8_t kind = taken_kind(kind_of<T>());
  if constexpr (kind_of<T>() == Kind::unsigned_integer && !Arithmetic) {
    if (chosen.op == kSignedMin) return apply_to_all(AsSigned<Minimum>{}, acc, v);
    if (chosen.op == kSignedMax) return apply_to_all(AsSigned<Maximum>{}, acc, v);
  }
  switch (static_cast<Operator>(chosen.op)) {
#define PC_CASE(name, functor, takes, meaning)                                             \
  case Operator::name:                                                                     \
    if constexpr (((takes) & kind) != 0 && (!Arithmetic || is_arithmetic(Operator::name))) \
      return apply_to_all(functor{}, acc, v);                                              \
    break;
    PC_OPERATORS(PC_CASE)
#undef PC_CASE
    default: break;
  }
}

// Elements of type T, reduced by Op.  Integers are not scaled here: see ScaledIntegers.
template <class T, class Op>
struct Elements {
  static constexpr bool is_float8 = std::is_class_v<T> && sizeof(T) == 1;
  static constexpr Limit limit = !Op::chosen && !is_float8 ? Limit::memory
                                 : Op::chosen && is_float8 ? Limit::arithmetic
                                                           : Limit::mixed;
  using Element = T;
  using A = Accumulator<T>;
  using Factor = typename RealOf<A>::type;
  Op op;
  ScaleFactors scaling;
  PC_FN Elements(int32_t number, const ScaleFactors& factors) : op(number), scaling(factors) {}

  PC_FN A load(T v, bool initial) const {
    if constexpr (has_factors<T>) {
      if (scaling.active != 0 && initial) return widen(v) * static_cast<Factor>(scaling.prescale);
    }
    return widen(v);
  }
  PC_FN T store(A a, bool complete) const {
    if constexpr (has_factors<T>) {
      if (scaling.active != 0 && complete)
        a = a / static_cast<Factor>(scaling.divisor) * static_cast<Factor>(scaling.postscale);
    }
    return narrow<T>(a);
  }
};

// Elements of any type, in a call that only copies them.
struct Unreduced {
  PC_FN Unreduced(int32_t, const ScaleFactors&) {}
};

// Elements that are added, each times its source's weight; no factors on contributions and results.
template <class T>
struct WeightedElements {
  static constexpr Limit limit = std::is_class_v<T> && sizeof(T) == 1 ? Limit::mixed : Limit::memory;
  using Element = T;
  using A = Accumulator<T>;
  Fixed<Sum> op;
  PC_FN WeightedElements(int32_t number, const ScaleFactors&) : op(number) {}

  PC_FN A load(T v, A weight) const { return widen(v) * weight; }
  PC_FN T store(A a, bool) const { return narrow<T>(a); }
};

template <class E> constexpr bool is_weighted = false;
template <class T> constexpr bool is_weighted<WeightedElements<T>> = true;

// Scaled integers: 64-bit sums, scaling in double, division and rounding toward zero.
template <class T>
struct ScaledIntegers {
  static constexpr Limit limit = Limit::arithmetic;
  using Element = T;
  using A = std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>;
  Chosen<T, true> op;
  ScaleFactors scaling;
  PC_FN ScaledIntegers(int32_t number, const ScaleFactors& factors) : op(number), scaling(factors) {}

  PC_FN A load(T v, bool initial) const {
    const A wide = v;
    if (!initial || scaling.prescale == 1.0) return wide;
    return to_integer<A>(static_cast<double>(wide) * scaling.prescale);
  }
  PC_FN T store(A a, bool complete) const {
    if (complete) {
      a = a / static_cast<A>(scaling.divisor);
      if (scaling.postscale != 1.0) a = to_integer<A>(static_cast<double>(a) * scaling.postscale);
    }
    return static_cast<T>(a);
  }
};

}  // namespace pc::cuda
