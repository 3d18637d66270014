// Conversions between float and the 16- and 8-bit formats, round to nearest, ties to even; and from double to integers.
// Formats: IEEE 754 binary16; bfloat16; OCP 8-bit floating point (E4M3 without infinities, E5M2).
#pragma once

#include <bit>
#include <cstdint>

#include "base/target.h"
#include "dtype/table.h"

// Internal linkage on purpose: this header is compiled once per instruction set, and a shared inline
// function would let the linker hand AVX-512 code to a machine without it.
namespace pc {
namespace {

// A small IEEE-like format: `Exponent` and `Mantissa` bits; `Finite` means no infinities (E4M3FN).
template <int Exponent, int Mantissa, bool Finite>
struct SmallFloat {
  static constexpr int bias = (1 << (Exponent - 1)) - 1;
  static constexpr uint32_t exponent_mask = (1u << Exponent) - 1;
  static constexpr uint32_t mantissa_mask = (1u << Mantissa) - 1;

  static PC_FN float power_of_two(int exponent) {
    return std::bit_cast<float>(static_cast<uint32_t>(exponent + 127) << 23);
  }

  static PC_FN float decode(uint32_t bits) {
    const uint32_t sign = (bits >> (Exponent + Mantissa)) << 31;
    const uint32_t exponent = (bits >> Mantissa) & exponent_mask;
    const uint32_t mantissa = bits & mantissa_mask;
    if constexpr (Finite) {
      if ((bits & (exponent_mask << Mantissa | mantissa_mask)) == (exponent_mask << Mantissa | mantissa_mask))
        return std::bit_cast<float>(sign | 0x7fc00000u);
    } else if (exponent == exponent_mask) {
      return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << (23 - Mantissa)));
    }
    if (exponent == 0) {
      const float magnitude = static_cast<float>(mantissa) * power_of_two(1 - bias - Mantissa);
      return sign != 0 ? -magnitude : magnitude;
    }
    return std::bit_cast<float>(sign | ((exponent + 127 - bias) << 23) | (mantissa << (23 - Mantissa)));
  }

  static PC_FN uint32_t encode(float value) {
    const uint32_t word = std::bit_cast<uint32_t>(value);
    const uint32_t sign = (word >> 31) << (Exponent + Mantissa);
    const uint32_t magnitude = word & 0x7fffffffu;
    constexpr uint32_t infinity = exponent_mask << Mantissa;
    constexpr uint32_t nan = Finite ? (infinity | mantissa_mask) : (infinity | (1u << (Mantissa - 1)));
    constexpr uint32_t overflow = Finite ? nan : infinity;
    constexpr uint32_t largest = Finite ? nan - 1 : infinity - 1;
    if (magnitude > 0x7f800000u) return sign | nan;
    const int exponent = static_cast<int>(magnitude >> 23) - 127;
    uint32_t rounded;
    if (exponent < 1 - bias) {  // subnormal: let float addition do the rounding
      const float unit = power_of_two(1 - bias - Mantissa + 23);
      rounded = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + unit) - std::bit_cast<uint32_t>(unit);
    } else {
      const uint32_t odd = (magnitude >> (23 - Mantissa)) & 1u;
      rounded = (magnitude - (static_cast<uint32_t>(127 - bias) << 23) + ((1u << (22 - Mantissa)) - 1) + odd) >>
                (23 - Mantissa);
    }
    return sign | (rounded > largest ? overflow : rounded);
  }
};

using Half = SmallFloat<5, 10, false>;
using E4M3FN = SmallFloat<4, 3, true>;
using E5M2 = SmallFloat<5, 2, false>;

[[maybe_unused]] PC_FN float to_float(bfloat16 v) { return std::bit_cast<float>(static_cast<uint32_t>(v.bits) << 16); }
[[maybe_unused]] PC_FN float to_float(float16 v) { return Half::decode(v.bits); }

template <class Format>
struct DecodeTable {
  float value[256];
  DecodeTable() {
    for (uint32_t i = 0; i < 256; ++i) value[i] = Format::decode(i);
  }
  static const DecodeTable& instance() {
    static const DecodeTable table;
    return table;
  }
};

[[maybe_unused]] PC_FN void from_float(float f, bfloat16& v) {
  const uint32_t word = std::bit_cast<uint32_t>(f);
  if ((word & 0x7fffffffu) > 0x7f800000u) {
    v.bits = static_cast<uint16_t>((word >> 16) | 0x40);  // keep a NaN a NaN
  } else {
    v.bits = static_cast<uint16_t>((word + 0x7fffu + ((word >> 16) & 1u)) >> 16);
  }
}
[[maybe_unused]] PC_FN void from_float(float f, float16& v) { v.bits = static_cast<uint16_t>(Half::encode(f)); }
[[maybe_unused]] PC_FN void from_float(float f, float8_e4m3fn& v) { v.bits = static_cast<uint8_t>(E4M3FN::encode(f)); }
[[maybe_unused]] PC_FN void from_float(float f, float8_e5m2& v) { v.bits = static_cast<uint8_t>(E5M2::encode(f)); }

// A 64-bit integer, toward zero.  Below zero an unsigned one wraps around; what 64 bits cannot hold becomes the nearest
// that they can, NaN 0.  A plain cast leaves these to the processor, and to which of its instructions are used.
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
