// Arithmetic on counts, extents and sizes given by callers: an overflow is an error.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>

#include "base/status.h"

namespace pc {

// `what` names the quantity in the error.  Throws InvalidArgument.
template <std::integral T>
T checked_add(T a, T b, const char* what) {
  T sum{};
  if (__builtin_add_overflow(a, b, &sum))
    throw InvalidArgument(std::string(what) + ": " + std::to_string(a) + " + " + std::to_string(b) + " overflows " +
                          std::to_string(8 * sizeof(T)) + " bits");
  return sum;
}

template <std::integral T>
T checked_mul(T a, T b, const char* what) {
  T product{};
  if (__builtin_mul_overflow(a, b, &product))
    throw InvalidArgument(std::string(what) + ": " + std::to_string(a) + " * " + std::to_string(b) + " overflows " +
                          std::to_string(8 * sizeof(T)) + " bits");
  return product;
}

// The number of elements of an array of these extents, each of `element` bytes.  Throws InvalidArgument for a negative
// extent, and if the number of bytes does not fit 64 bits.
template <class Extents>
int64_t checked_count(const Extents& extents, int64_t element, const char* what) {
  bool empty = false;
  for (const int64_t extent : extents) {
    if (extent < 0) throw InvalidArgument(std::string(what) + ": an extent of " + std::to_string(extent));
    empty = empty || extent == 0;
  }
  if (empty) return 0;
  int64_t count = 1;
  for (const int64_t extent : extents) count = checked_mul(count, extent, what);
  checked_mul(count, element, what);
  return count;
}

}  // namespace pc
