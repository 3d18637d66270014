// Conversions between float and the 16- and 8-bit formats, round to nearest, ties to even; and from double to integers.
// Formats: IEEE 754 binary16; bfloat16; OCP 8-bit floating point (E4M3 without infinities, E5M2).
#pragma once

#include <bit>
#include <cstdint>

#include "base/target.h"
#include "dtype/table.h"

// Internal linkage on purpose: this header is compiled once per instruction set, and a shared inline
// function would let the linker pick AVX-512 code on a machine without it.
namespace pc {
namespace {

// The operand of the conversions below: one element here, a vector register in lanes.h.
struct One {
  using Int = int32_t;
  using Float = float;
  static PC_FN Float convert(Int v) { return static_cast<float>(v); }
};

// A small IEEE-like format: `Exponent` and `Mantissa` bits; `Finite` means no infinities (E4M3FN).  Branch-free;
// compared and converted integers are signed, as the instructions of SSE2 and AVX2 are.
template <int Exponent, int Mantissa, bool Finite>
struct SmallFloat {
  static constexpr int bias = (1 << (Exponent - 1)) - 1;
  static constexpr int shift = 23 - Mantissa;
  static constexpr int32_t mantissa_mask = (1 << Mantissa) - 1;
  static constexpr int32_t infinity = ((1 << Exponent) - 1) << Mantissa;  // the largest exponent

  static PC_FN float power_of_two(int exponent) { return std::bit_cast<float>((exponent + 127) << 23); }

  template <class Lane = One>
  static PC_FN typename Lane::Float decode(typename Lane::Int bits) {
    using Int = typename Lane::Int;
    const Int sign = (bits << (31 - Exponent - Mantissa)) & INT32_MIN;
    const Int magnitude = bits & (infinity | mantissa_mask);
    const Int aligned = magnitude << shift;
    const Int normal = aligned + ((127 - bias) << 23);
    const Int subnormal = std::bit_cast<Int>(Lane::convert(magnitude) * power_of_two(1 - bias - Mantissa));
    const Int finite = magnitude <= mantissa_mask ? subnormal : normal;
    if constexpr (Finite) {
      const Int nan = Int{} + 0x7fc00000;
      return std::bit_cast<typename Lane::Float>(sign | (magnitude == (infinity | mantissa_mask) ? nan : finite));
    } else {
      const Int special = aligned | 0x7f800000;
      return std::bit_cast<typename Lane::Float>(sign | (magnitude >= infinity ? special : finite));
    }
  }

  template <class Lane = One>
  static PC_FN typename Lane::Int encode(typename Lane::Float value) {
    using Int = typename Lane::Int;
    using Float = typename Lane::Float;
    constexpr int32_t not_a_number = Finite ? (infinity | mantissa_mask) : (infinity | (1 << (Mantissa - 1)));
    constexpr int32_t largest = (Finite ? not_a_number : infinity) - 1;
    constexpr int32_t smallest_normal = (128 - bias) << 23;
    const Int word = std::bit_cast<Int>(value);
    const Int sign = (word >> (31 - Exponent - Mantissa)) & (1 << (Exponent + Mantissa));
    const Int magnitude = word & INT32_MAX;
    const float unit = power_of_two(1 - bias - Mantissa + 23);  // float addition rounds what becomes subnormal
    const Int subnormal = std::bit_cast<Int>(std::bit_cast<Float>(magnitude) + unit) - std::bit_cast<int32_t>(unit);
    const Int odd = (word >> shift) & 1;
    const Int normal = (magnitude - ((127 - bias) << 23) + ((1 << (shift - 1)) - 1) + odd) >> shift;
    const Int rounded = magnitude < smallest_normal ? subnormal : normal;
    const Int overflow = Int{} + (largest + 1), nan = Int{} + not_a_number;
    const Int finite = rounded > largest ? overflow : rounded;
    return sign | (magnitude > 0x7f800000 ? nan : finite);
  }
};

// Powers of two from 2^-127 to 2^127, and NaN: OCP's scale format.  Rounds as ml_dtypes does: to nearest, ties up;
// values between the two smallest round up; zero, negative and too large values become NaN.
struct E8M0FNU {
  static constexpr int32_t nan = 0xff, smallest = 0x400000;  // 2^-127: subnormal as a float

  template <class Lane = One>
  static PC_FN typename Lane::Float decode(typename Lane::Int bits) {
    using Int = typename Lane::Int;
    const Int finite = bits == 0 ? Int{} + smallest : bits << 23;
    return std::bit_cast<typename Lane::Float>(bits == nan ? Int{} + 0x7fc00000 : finite);
  }

  template <class Lane = One>
  static PC_FN typename Lane::Int encode(typename Lane::Float value) {
    using Int = typename Lane::Int;
    const Int word = std::bit_cast<Int>(value);
    const Int rounded = (((word & INT32_MAX) >> 22) + 1) >> 1;
    const Int finite = word <= smallest ? Int{} : rounded;
    return ((word <= 0) | (word > 0x7f3fffff)) ? Int{} + nan : finite;
  }
};

using Half = SmallFloat<5, 10, false>;
using E4M3FN = SmallFloat<4, 3, true>;
using E5M2 = SmallFloat<5, 2, false>;

[[maybe_unused]] PC_FN float to_float(bfloat16 v) { return std::bit_cast<float>(static_cast<uint32_t>(v.bits) << 16); }
[[maybe_unused]] PC_FN float to_float(float16 v) { return Half::decode(v.bits); }

[[maybe_unused]] PC_FN void from_float(float f, bfloat16& v) {
  const uint32_t word = std::bit_cast<uint32_t>(f);
  if ((word & 0x7fffffffu) > 0x7f800000u) {
    v.bits = static_cast<uint16_t>((word >> 16) | 0x40);  // a NaN stays a NaN
  } else {
    v.bits = static_cast<uint16_t>((word + 0x7fffu + ((word >> 16) & 1u)) >> 16);
  }
}
[[maybe_unused]] PC_FN void from_float(float f, float16& v) { v.bits = static_cast<uint16_t>(Half::encode(f)); }
[[maybe_unused]] PC_FN void from_float(float f, float8_e4m3fn& v) { v.bits = static_cast<uint8_t>(E4M3FN::encode(f)); }
[[maybe_unused]] PC_FN void from_float(float f, float8_e5m2& v) { v.bits = static_cast<uint8_t>(E5M2::encode(f)); }
[[maybe_unused]] PC_FN void from_float(float f, float8_e8m0fnu& v) {
  v.bits = static_cast<uint8_t>(E8M0FNU::encode(f));
}

// A 64-bit integer, rounded toward zero.  Below zero an unsigned one wraps around; out-of-range values saturate, NaN
// becomes 0.  For a plain cast these depend on the processor and on the instructions used.
template <class Wide>
PC_FN Wide to_integer(double v) {
  constexpr double half = 9223372036854775808.0;  // 2^63
  if (v != v) return 0;
  if (v < half) return static_cast<Wide>(static_cast<int64_t>(v < -half ? -half : v));
  if constexpr (static_cast<Wide>(-1) < 0) return static_cast<Wide>(INT64_MAX);
  else return v < 2 * half ? static_cast<Wide>(v) : static_cast<Wide>(UINT64_MAX);
}

}  // namespace
}  // namespace pc
