// Formats without conversion instructions: stretches of elements are converted to floats and back by loops that all
// operators share.  Internal linkage for the reason given in convert.h.
#pragma once

#include <algorithm>
#include <cstring>

#include "dtype/convert.h"
#include "dtype/kernels.h"
#include "dtype/lanes.h"
#include "dtype/table.h"

namespace pc {
namespace {

template <class T> constexpr bool is_converted = false;
template <> inline constexpr bool is_converted<float8_e4m3fn> = true;
template <> inline constexpr bool is_converted<float8_e5m2> = true;
template <> inline constexpr bool is_converted<float8_e8m0fnu> = true;
#if !defined(__F16C__)
template <> inline constexpr bool is_converted<float16> = true;
#endif

template <class T> struct FormatOf;
template <> struct FormatOf<float8_e4m3fn> { using type = E4M3FN; };
template <> struct FormatOf<float8_e5m2> { using type = E5M2; };
template <> struct FormatOf<float8_e8m0fnu> { using type = E8M0FNU; };
template <> struct FormatOf<float16> { using type = Half; };

constexpr size_t kStretch = 512;  // elements: a call's buffers stay in the L1 cache
constexpr size_t kRegister = PC_VECTOR_BYTES / sizeof(float);  // elements of a register

// `count` elements: a multiple of kRegister.  Widening and narrowing are separate loops, which compilers vectorize
// better than conversions of vectors; the rest is vectorized only if written with vectors.
template <class T>
[[gnu::noinline]] void decode(const T* from, float* into, size_t count) {
  int32_t words[kStretch];
  for (size_t i = 0; i < count; ++i) words[i] = element_of<T>(from, i).bits;
  for (size_t i = 0; i < count; i += kRegister) {
    IntVector word;
    std::memcpy(&word, words + i, sizeof word);
    const FloatVector value = FormatOf<T>::type::template decode<Register>(word);
    std::memcpy(into + i, &value, sizeof value);
  }
}

template <class T>
[[gnu::noinline]] void encode(const float* from, T* into, size_t count) {
  int32_t words[kStretch];
  for (size_t i = 0; i < count; i += kRegister) {
    FloatVector value;
    std::memcpy(&value, from + i, sizeof value);
    const IntVector word = FormatOf<T>::type::template encode<Register>(value);
    std::memcpy(words + i, &word, sizeof word);
  }
  for (size_t i = 0; i < count; ++i) into[i].bits = static_cast<decltype(T::bits)>(words[i]);
}

template <class Op>
[[gnu::noinline]] void apply(float* into, const float* from, size_t count) {
  for (size_t i = 0; i < count; ++i) into[i] = Op::apply(into[i], from[i]);
}

template <class Op>
[[gnu::noinline]] void apply_first(float* values, size_t count) {
  for (size_t i = 0; i < count; ++i) values[i] = Op::first(values[i]);
}

// (value / divisor) * factor; a divisor of 1 changes no bit.
[[gnu::noinline]] inline void scale(float* values, size_t count, float divisor, float factor) {
  for (size_t i = 0; i < count; ++i) values[i] = values[i] / divisor * factor;
}

// What sources are multiplied by.
enum class Factors { none, scaling, weights };

// An operator on floats, in stretches.
struct FloatOperator {
  void (*first)(float*, size_t);  // null: leaves a single contribution as it is
  void (*apply)(float*, const float*, size_t);
};

template <class T>
[[gnu::noinline]] void combine_stretches(const Block& b, FloatOperator op, Factors factors) {
  alignas(64) float values[kStretch], next[kStretch];
  T packed[kStretch];
  for (size_t at = 0; at < b.count; at += kStretch) {
    const size_t count = std::min(kStretch, b.count - at);
    const size_t whole = (count + kRegister - 1) / kRegister * kRegister;
    for (int s = 0; s < b.k; ++s) {
      const T* from = static_cast<const T*>(b.sources[s]) + at;
      if (whole != count) {
        std::memset(static_cast<void*>(packed), 0, whole * sizeof(T));
        from = static_cast<const T*>(std::memcpy(static_cast<void*>(packed), from, count * sizeof(T)));
      }
      float* into = s == 0 ? values : next;
      decode(from, into, whole);
      if (factors == Factors::scaling && b.initial[s])
        scale(into, whole, 1.0f, static_cast<float>(b.scaling->prescale));
      if (factors == Factors::weights) scale(into, whole, 1.0f, static_cast<float>(b.weights[s]));
      if (s > 0) op.apply(values, next, whole);
      else if (op.first != nullptr) op.first(values, whole);
    }
    if (factors == Factors::scaling && b.complete)
      scale(values, whole, static_cast<float>(b.scaling->divisor), static_cast<float>(b.scaling->postscale));
    encode(values, packed, whole);
    for (int d = 0; d < b.m; ++d)
      std::memcpy(static_cast<void*>(static_cast<T*>(b.targets[d]) + at), packed, count * sizeof(T));
  }
}

template <class T, class Op, Factors factors>
void combine_converted(const Block& b) {
  combine_stretches<T>(b, {Op::normalises ? apply_first<Op> : nullptr, apply<Op>}, factors);
}

}  // namespace
}  // namespace pc
