// The meaning of the element types and operators, written a second time and as plainly as possible: small formats are
// decoded by definition and encoded by searching the nearest value.  Shares only the tables with csrc/dtype.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "dtype/table.h"

namespace pc::test {

// A format of 1 + exponent + mantissa bits.  `finite`: no infinities, all ones is the NaN (E4M3FN).
class SmallFormat {
 public:
  SmallFormat(int exponent, int mantissa, bool finite) : exponent_(exponent), mantissa_(mantissa), finite_(finite) {
    for (uint32_t bits = 0; bits < sign_bit() && !is_nan(bits) && !is_infinite(bits); ++bits)
      magnitudes_.push_back(decode(bits));  // ascending: the bits of a magnitude are its rank
  }
  uint32_t patterns() const { return 2 * sign_bit(); }
  bool is_nan(uint32_t bits) const {
    const uint32_t magnitude = bits & (sign_bit() - 1);
    return finite_ ? magnitude == sign_bit() - 1 : magnitude > infinity();
  }
  double decode(uint32_t bits) const {
    const int sign = (bits & sign_bit()) != 0 ? -1 : 1;
    if (is_nan(bits)) return std::numeric_limits<double>::quiet_NaN();
    if (is_infinite(bits)) return sign * std::numeric_limits<double>::infinity();
    const int exponent = static_cast<int>(bits >> mantissa_) & ((1 << exponent_) - 1);
    const int fraction = static_cast<int>(bits) & ((1 << mantissa_) - 1);
    const int bias = (1 << (exponent_ - 1)) - 1;
    const double one = std::ldexp(1.0, mantissa_);
    const double magnitude =
        exponent == 0 ? std::ldexp(fraction / one, 1 - bias) : std::ldexp(1.0 + fraction / one, exponent - bias);
    return sign * magnitude;
  }
  // To nearest, ties to the even pattern; beyond the largest value, as if the next one existed.
  uint32_t encode(double value) const {
    const uint32_t sign = std::signbit(value) ? sign_bit() : 0;
    const uint32_t overflow = finite_ ? sign_bit() - 1 : infinity();
    if (std::isnan(value)) return sign | (finite_ ? sign_bit() - 1 : infinity() | (1u << (mantissa_ - 1)));
    const double magnitude = std::fabs(value);
    const auto above = std::lower_bound(magnitudes_.begin(), magnitudes_.end(), magnitude);
    const auto index = static_cast<uint32_t>(above - magnitudes_.begin());
    if (above != magnitudes_.end() && *above == magnitude) return sign | index;
    if (above == magnitudes_.begin()) return sign;
    const double low = magnitudes_[index - 1];
    const double high = above != magnitudes_.end() ? *above : 2 * low - magnitudes_[index - 2];
    const bool up = magnitude - low > high - magnitude || (magnitude - low == high - magnitude && index % 2 == 0);
    if (!up) return sign | (index - 1);
    return sign | (above != magnitudes_.end() ? index : overflow);
  }

 private:
  uint32_t sign_bit() const { return 1u << (exponent_ + mantissa_); }
  uint32_t infinity() const { return ((1u << exponent_) - 1) << mantissa_; }
  bool is_infinite(uint32_t bits) const { return !finite_ && (bits & (sign_bit() - 1)) == infinity(); }
  int exponent_, mantissa_;
  bool finite_;
  std::vector<double> magnitudes_;
};

// Storage, arithmetic and rounding of T.
template <class T>
struct Meaning {
  using Accumulator = T;
  static T load(T v) { return v; }
  static T store(T v) { return v; }
};

template <class T, int exponent, int mantissa, bool finite>
struct SmallMeaning {
  using Accumulator = float;
  static float load(T v) { return static_cast<float>(format().decode(v.bits)); }
  static T store(float v) { return {static_cast<decltype(T::bits)>(format().encode(v))}; }
  static const SmallFormat& format() {
    static const SmallFormat format(exponent, mantissa, finite);
    return format;
  }
};
template <> struct Meaning<float16> : SmallMeaning<float16, 5, 10, false> {};
template <> struct Meaning<bfloat16> : SmallMeaning<bfloat16, 8, 7, false> {};
template <> struct Meaning<float8_e4m3fn> : SmallMeaning<float8_e4m3fn, 4, 3, true> {};
template <> struct Meaning<float8_e5m2> : SmallMeaning<float8_e5m2, 5, 2, false> {};
// Powers of two: to nearest, ties up; values that are not positive or too large become NaN.
template <> struct Meaning<float8_e8m0fnu> {
  using Accumulator = float;
  static float load(float8_e8m0fnu v) {
    return v.bits == 0xff ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0f, v.bits - 127);
  }
  static float8_e8m0fnu store(float v) {
    if (!(v > 0) || std::isinf(v)) return {0xff};
    if (v > std::ldexp(1.0f, -127) && v < std::ldexp(1.0f, -126)) return {1};  // up, also below the middle
    int exponent = 0;
    const double fraction = std::frexp(static_cast<double>(v), &exponent);  // 0.5 to 1
    const int power = exponent - (fraction < 0.75 ? 1 : 0) + 127;
    return {static_cast<uint8_t>(std::clamp(power, 0, 0xff))};
  }
};
template <> struct Meaning<boolean> {
  using Accumulator = bool;
  static bool load(boolean v) { return v.bits != 0; }
  static boolean store(bool v) { return {static_cast<uint8_t>(v ? 1 : 0)}; }
};

// Where sums and products of A wrap: for integers the smallest unsigned type that does not promote to int.
template <class A>
using Wrapping = std::conditional_t<!std::is_integral_v<A>, A, std::conditional_t<sizeof(A) == 8, uint64_t, uint32_t>>;

template <class A>
A add(A a, A b) {
  if constexpr (std::is_same_v<A, bool>) return a || b;
  else return static_cast<A>(static_cast<Wrapping<A>>(a) + static_cast<Wrapping<A>>(b));
}

template <class A>
A multiply(A a, A b) {
  if constexpr (std::is_same_v<A, bool>) return a && b;
  else return static_cast<A>(static_cast<Wrapping<A>>(a) * static_cast<Wrapping<A>>(b));
}

template <class A>
A bitwise(Operator op, A a, A b) {
  if constexpr (std::is_integral_v<A>)
    return static_cast<A>(op == Operator::band ? a & b : op == Operator::bor ? a | b : a ^ b);
  else return a;
}

template <class A>
A apply(Operator op, A a, A b) {
  switch (op) {
    case Operator::sum:
    case Operator::avg: return add(a, b);
    case Operator::prod: return multiply(a, b);
    case Operator::min: return a != a ? a : b != b ? b : std::min(a, b);
    case Operator::max: return a != a ? a : b != b ? b : std::max(a, b);
    case Operator::land: return static_cast<A>(a != A{} && b != A{} ? 1 : 0);
    case Operator::lor: return static_cast<A>(a != A{} || b != A{} ? 1 : 0);
    default: return bitwise(op, a, b);
  }
}

}  // namespace pc::test
