// Comparing floating-point numbers by their bits: unlike with `==`, a NaN equals itself and 0.0 differs from -0.0.
#pragma once

#include <bit>
#include <cstdint>

namespace pc {

constexpr uint64_t bits_of(double value) { return std::bit_cast<uint64_t>(value); }

}  // namespace pc
