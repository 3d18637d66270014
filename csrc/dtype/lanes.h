// Vector registers of each element type: how a run of elements is loaded into the accumulator's type and stored from
// it.  Internal linkage for the reason given in convert.h.
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
typedef int32_t IntVector __attribute__((vector_size(PC_VECTOR_BYTES)));
typedef uint16_t HalfwordVector __attribute__((vector_size(PC_VECTOR_BYTES / 2)));

// Non-temporal stores, for results that are not read soon: saves fetching the lines first.  `into` is aligned to the
// size of what is written.
template <class Packed>
inline void stream_packed(void* into, const Packed& packed) {
#if defined(__AVX512F__)
  if constexpr (sizeof(Packed) == 64) return _mm512_stream_si512(static_cast<__m512i*>(into), (__m512i)packed);
#endif
#if defined(__AVX__)
  if constexpr (sizeof(Packed) == 32) return _mm256_stream_si256(static_cast<__m256i*>(into), (__m256i)packed);
#endif
#if defined(__SSE2__)
  if constexpr (sizeof(Packed) == 16) return _mm_stream_si128(static_cast<__m128i*>(into), (__m128i)packed);
#endif
  std::memcpy(into, &packed, sizeof packed);
}

inline void stream_fence() {  // a release store does not order non-temporal stores: this does
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

// An array may begin at any address, not only at a multiple of its elements' size.
template <class T>
T element_of(const void* array, size_t i) {
  T value;
  std::memcpy(static_cast<void*>(&value), static_cast<const char*>(array) + i * sizeof(T), sizeof value);
  return value;
}

template <class T>
void set_element(void* array, size_t i, T value) {
  std::memcpy(static_cast<char*>(array) + i * sizeof(T), static_cast<const void*>(&value), sizeof value);
}

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
  static Vector pack(Vector v) { return v; }
};

// Types widened to float.
struct Widened {
  using Vector = FloatVector;
  using Scalar = float;
  static constexpr int count = PC_VECTOR_BYTES / sizeof(float);
};

// For the conversions in convert.h.
struct Register {
  using Int = IntVector;
  using Float = FloatVector;
  static Float convert(Int v) { return __builtin_convertvector(v, Float); }
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
  static HalfwordVector pack(Vector v) {
    WordVector word;
    std::memcpy(&word, &v, sizeof word);
    const WordVector rounded = (word + 0x7fffu + ((word >> 16) & 1u)) >> 16;
    const WordVector quiet = (word >> 16) | 0x40u;
    const WordVector chosen = ((word & 0x7fffffffu) > 0x7f800000u) ? quiet : rounded;
    return __builtin_convertvector(chosen, HalfwordVector);
  }
};

#if defined(__F16C__)
template <>
struct Lanes<float16> : Widened {
#if defined(__AVX512F__)
  static Vector load(const float16* from) {
    return (Vector)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
  static __m256i pack(Vector v) { return _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
#else
  static Vector load(const float16* from) {
    return (Vector)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  static __m128i pack(Vector v) { return _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT); }
#endif
};
#endif

}  // namespace
}  // namespace pc
