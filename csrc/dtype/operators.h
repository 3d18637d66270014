// The reduction operators on scalars and vector registers, on CPU and GPU.
// Internal linkage for the reason given in convert.h.
#pragma once

#include "base/target.h"
#include "dtype/table.h"

namespace pc {
namespace {

template <class Real>
PC_FN Complex<Real> operator+(Complex<Real> a, Complex<Real> b) {
  return {a.real + b.real, a.imaginary + b.imaginary};
}
template <class Real>
PC_FN Complex<Real> operator*(Complex<Real> a, Complex<Real> b) {  // as in NumPy: no special case for infinities
  return {a.real * b.real - a.imaginary * b.imaginary, a.real * b.imaginary + a.imaginary * b.real};
}
template <class Real>
PC_FN Complex<Real> operator*(Complex<Real> a, Real factor) {
  return {a.real * factor, a.imaginary * factor};
}
template <class Real>
PC_FN Complex<Real> operator/(Complex<Real> a, Real divisor) {
  return {a.real / divisor, a.imaginary / divisor};
}

template <class V>
PC_FN V one() {
  return static_cast<V>(V{} + 1);
}

// Most operators leave a single contribution unchanged.
struct Identity {
  static constexpr bool normalises = false;
  template <class V> static PC_FN V first(V a) { return a; }
};
struct Sum : Identity {
  template <class V> static PC_FN V apply(V a, V b) { return static_cast<V>(a + b); }
};
struct Product : Identity {
  template <class V> static PC_FN V apply(V a, V b) { return static_cast<V>(a * b); }
};
struct Minimum : Identity {  // a != a: a NaN on either side wins, as in numpy.minimum
  template <class V> static PC_FN V apply(V a, V b) { return ((a < b) | (a != a)) ? a : b; }
};
struct Maximum : Identity {
  template <class V> static PC_FN V apply(V a, V b) { return ((a > b) | (a != a)) ? a : b; }
};
struct BitAnd : Identity {
  template <class V> static PC_FN V apply(V a, V b) { return static_cast<V>(a & b); }
};
struct BitOr : Identity {
  template <class V> static PC_FN V apply(V a, V b) { return static_cast<V>(a | b); }
};
struct BitXor : Identity {
  template <class V> static PC_FN V apply(V a, V b) { return static_cast<V>(a ^ b); }
};
struct Logical {
  static constexpr bool normalises = true;
  template <class V> static PC_FN V first(V a) { return (a != V{}) ? one<V>() : V{}; }
};
struct LogicalAnd : Logical {
  template <class V> static PC_FN V apply(V a, V b) { return ((a != V{}) & (b != V{})) ? one<V>() : V{}; }
};
struct LogicalOr : Logical {
  template <class V> static PC_FN V apply(V a, V b) { return ((a != V{}) | (b != V{})) ? one<V>() : V{}; }
};

// On booleans (bytes 0 and 1) addition is "or" and multiplication "and", as in NumPy.
template <class Op> struct OnBooleans { using type = Op; };
template <> struct OnBooleans<Sum> { using type = BitOr; };
template <> struct OnBooleans<Maximum> { using type = BitOr; };
template <> struct OnBooleans<LogicalOr> { using type = BitOr; };
template <> struct OnBooleans<Product> { using type = BitAnd; };
template <> struct OnBooleans<Minimum> { using type = BitAnd; };
template <> struct OnBooleans<LogicalAnd> { using type = BitAnd; };

}  // namespace
}  // namespace pc
