// Vector registers of each element type: how a run of elements is loaded into the accumulator's type
// and stored from it.  Internal linkage for the reason given in convert.h.
#pragma once

#include <cstring>
#include <type_traits>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "dtype/convert.h"
#include "dtype/table.h"

#if defined(__AVX512F__)
#define PC_VECTOR_BYTES 64
#elif defined(__AVX2__)
#define PC_VECTOR_BYTES 32
#else
#define PC_VECTOR_BYTES 16
#endif

namespace pc {
namespace {

typedef float FloatVector __attribute__((vector_size(PC_VECTOR_BYTES)));
typedef uint32_t WordVector __attribute__((vector_size(PC_VECTOR_BYTES)));
typedef uint16_t HalfwordVector __attribute__((vector_size(PC_VECTOR_BYTES / 2)));

// Types whose registers hold the elements themselves.
template <class T>
struct Lanes {
  typedef T Vector __attribute__((vector_size(PC_VECTOR_BYTES)));
  using Scalar = T;
  static constexpr int count = PC_VECTOR_BYTES / sizeof(T);
  static Vector load(const T* from) {
    Vector v;
    std::memcpy(&v, from, sizeof v);
    return v;
  }
  static void store(T* into, Vector v) { std::memcpy(into, &v, sizeof v); }
};

template <>
struct Lanes<boolean> {
  using Vector = Lanes<uint8_t>::Vector;
  using Scalar = uint8_t;
  static constexpr int count = PC_VECTOR_BYTES;
  static Vector load(const boolean* from) { return Lanes<uint8_t>::load(&from->bits); }
  static void store(boolean* into, Vector v) { Lanes<uint8_t>::store(&into->bits, v); }
};

// Types that are widened to float.
struct Widened {
  using Vector = FloatVector;
  using Scalar = float;
  static constexpr int count = PC_VECTOR_BYTES / sizeof(float);
};

template <>
struct Lanes<bfloat16> : Widened {
  static Vector load(const bfloat16* from) {
    HalfwordVector half;
    std::memcpy(&half, from, sizeof half);
    const WordVector word = __builtin_convertvector(half, WordVector) << 16;
    Vector v;
    std::memcpy(&v, &word, sizeof v);
    return v;
  }
  static void store(bfloat16* into, Vector v) {
    WordVector word;
    std::memcpy(&word, &v, sizeof word);
    const WordVector rounded = (word + 0x7fffu + ((word >> 16) & 1u)) >> 16;
    const WordVector quiet = (word >> 16) | 0x40u;
    const WordVector chosen = ((word & 0x7fffffffu) > 0x7f800000u) ? quiet : rounded;
    const HalfwordVector half = __builtin_convertvector(chosen, HalfwordVector);
    std::memcpy(into, &half, sizeof half);
  }
};

template <>
struct Lanes<float16> : Widened {
#if defined(__AVX512F__)
  static Vector load(const float16* from) {
    return (Vector)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
  static void store(float16* into, Vector v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(into),
                        _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
#elif defined(__F16C__)
  static Vector load(const float16* from) {
    return (Vector)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  static void store(float16* into, Vector v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(into), _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT));
  }
#else
  static Vector load(const float16* from) {
    Vector v;
    for (int i = 0; i < count; ++i) v[i] = to_float(from[i]);
    return v;
  }
  static void store(float16* into, Vector v) {
    for (int i = 0; i < count; ++i) from_float(v[i], into[i]);
  }
#endif
};

template <class T, class Format>
struct TableLanes : Widened {
  static Vector load(const T* from) {
    const float* table = DecodeTable<Format>::instance().value;
    Vector v;
    for (int i = 0; i < count; ++i) v[i] = table[from[i].bits];
    return v;
  }
  static void store(T* into, Vector v) {
    for (int i = 0; i < count; ++i) from_float(v[i], into[i]);
  }
};
template <> struct Lanes<float8_e4m3fn> : TableLanes<float8_e4m3fn, E4M3FN> {};
template <> struct Lanes<float8_e5m2> : TableLanes<float8_e5m2, E5M2> {};

}  // namespace
}  // namespace pc
