// The combining kernels.  Included once per instruction set, by kernels_{base,avx2,avx512}.cpp, with
// PC_ISA naming the namespace.  Pairs of type and operator with the same bit-level result share code: compiling each
// separately took most of the build time.
#pragma once

#include <algorithm>

#include "dtype/convert.h"
#include "dtype/converted.h"
#include "dtype/kernels.h"
#include "dtype/lanes.h"
#include "dtype/operators.h"

namespace pc {
namespace {

constexpr size_t kLine = 64;  // bytes of a cache line
constexpr int kUnroll = 4;  // registers in flight per source; hides the latency of a load

// One run of kUnroll registers: all sources combined left to right, then written to all targets.  `Partial` runs hold
// fewer elements and go through a padded buffer, so that the arithmetic is the same.
template <class T, class Op, Factors factors, bool Partial>
inline void combine_run(const Block& b, size_t at, size_t count) {
  using L = Lanes<T>;
  using V = typename L::Vector;
  constexpr size_t run = static_cast<size_t>(L::count) * kUnroll;
  T padded[Partial ? run : 1];
  if constexpr (Partial) std::memset(static_cast<void*>(padded), 0, sizeof padded);

  V acc[kUnroll] = {};
  for (int s = 0; s < b.k; ++s) {
    const T* from = static_cast<const T*>(b.sources[s]) + at;
    if constexpr (Partial) {
      std::memcpy(static_cast<void*>(padded), from, count * sizeof(T));
      from = padded;
    }
#pragma GCC unroll 4
    for (int u = 0; u < kUnroll; ++u) {
      V v = L::load(from + u * L::count);
      if constexpr (factors == Factors::scaling) {
        if (b.initial[s]) v = v * static_cast<typename L::Scalar>(b.scaling->prescale);
      }
      if constexpr (factors == Factors::weights) v = v * static_cast<typename L::Scalar>(b.weights[s]);
      acc[u] = s == 0 ? Op::first(v) : Op::apply(acc[u], v);
    }
  }
  if constexpr (factors == Factors::scaling) {
    if (b.complete) {
      for (V& v : acc)
        v = v / static_cast<typename L::Scalar>(b.scaling->divisor) *
            static_cast<typename L::Scalar>(b.scaling->postscale);
    }
  }
  for (int d = 0; d < b.m; ++d) {
    T* into = static_cast<T*>(b.targets[d]) + at;
    if (!Partial && b.streamed != nullptr && b.streamed[d] && reinterpret_cast<uintptr_t>(into) % kLine == 0) {
#pragma GCC unroll 4
      for (int u = 0; u < kUnroll; ++u) stream_packed(into + u * L::count, L::pack(acc[u]));
      continue;
    }
    T* out = Partial ? padded : into;
#pragma GCC unroll 4
    for (int u = 0; u < kUnroll; ++u) {
      const auto packed = L::pack(acc[u]);
      std::memcpy(static_cast<void*>(out + u * L::count), &packed, sizeof packed);
    }
    if constexpr (Partial) std::memcpy(static_cast<void*>(into), padded, count * sizeof(T));
  }
}

template <class T, class Op, Factors factors>
[[gnu::noinline]] void combine_part(const Block& b, size_t at, size_t count) {
  combine_run<T, Op, factors, true>(b, at, count);
}

// A load waits for recent stores to addresses with the same last 12 bits: the processor compares no more at first.
// Positive if loads from `source` meet such stores to `target` in ascending order, negative if in descending order; the
// greater, the more recent the stores.
inline int waits(const void* target, const void* source) {
  constexpr int page = 4096, recent = 1024;
  const uintptr_t distance = reinterpret_cast<uintptr_t>(target) - reinterpret_cast<uintptr_t>(source);
  const int ahead = static_cast<int>(distance % page);
  if (ahead == 0) return 0;
  return ahead < page / 2 ? std::max(0, recent - ahead) : std::min(0, page - ahead - recent);
}

// The order in which sources wait less for the stores to the first target.
[[gnu::noinline]] bool descending_is_better(const Block& b) {
  int waiting = 0;
  for (int s = 0; s < b.k; ++s) waiting += waits(b.targets[0], b.sources[s]);
  return waiting > 0;
}

// Elements up to the first line boundary of a target, the first streamed one if any: streaming writes whole lines only,
// and a store across two lines takes as long as two.
template <class T>
size_t elements_before_line(const Block& b) {
  int aligned = 0;
  for (int d = b.m - 1; d >= 0 && b.streamed != nullptr; --d)
    if (b.streamed[d]) aligned = d;
  return (kLine - reinterpret_cast<uintptr_t>(b.targets[aligned]) % kLine) % kLine / sizeof(T);
}

template <class T, class Op, Factors factors>
void combine(const Block& b) {
  constexpr size_t run = static_cast<size_t>(Lanes<T>::count) * kUnroll;
  constexpr size_t large = 4096 / sizeof(T);  // aligning what is smaller takes longer than it saves
  size_t at = 0;
  if (b.streamed != nullptr || b.count >= large) {
    const size_t head = std::min(elements_before_line<T>(b), b.count);
    for (size_t part; at < head; at += part) combine_part<T, Op, factors>(b, at, part = std::min(run, head - at));
  }
  size_t runs = (b.count - at) / run;
  const size_t end = at + runs * run;
  if (end < b.count) combine_part<T, Op, factors>(b, end, b.count - end);
  const bool descending = b.count >= large && descending_is_better(b);
  if (descending) at = end - run;
  for (const size_t step = descending ? -run : run; runs != 0; --runs, at += step)
    combine_run<T, Op, factors, false>(b, at, run);
  if (b.streamed != nullptr) stream_fence();
}

// Copies bytes that do not overlap, at least two registers of them: whole registers to aligned addresses, both ends
// unaligned.  All registers of a run are loaded before one is stored, so that addresses that are equal in their last 12
// bits do not wait for each other.
inline void copy_registers(char* to, const char* from, size_t bytes) {
  using L = Lanes<uint8_t>;
  constexpr size_t width = sizeof(L::Vector), run = width * kUnroll;
  const auto load = [](const char* at) { return L::load(reinterpret_cast<const uint8_t*>(at)); };
  const L::Vector first = load(from), last = load(from + bytes - width);
  const bool descending = waits(to, from) > 0;
  const size_t head = width - reinterpret_cast<uintptr_t>(to) % width;
  char* const into = to + head;
  from += head;
  const size_t left = bytes - head;
  size_t runs = left / run, at = descending ? (runs - 1) * run : 0;
  for (const size_t step = descending ? -run : run; runs != 0; --runs, at += step) {
    L::Vector v[kUnroll];
#pragma GCC unroll 4
    for (int u = 0; u < kUnroll; ++u) v[u] = load(from + at + u * width);
#pragma GCC unroll 4
    for (int u = 0; u < kUnroll; ++u) std::memcpy(__builtin_assume_aligned(into + at + u * width, width), &v[u], width);
  }
  for (at = left / run * run; at + width <= left; at += width) {
    const L::Vector v = load(from + at);
    std::memcpy(__builtin_assume_aligned(into + at, width), &v, width);
  }
  std::memcpy(to, &first, width);
  std::memcpy(to + bytes - width, &last, width);
}

// Scaled integers: 64-bit sums, scaling in double, division and rounding toward zero.
template <class T, class Op>
void combine_scaled_integers(const Block& b) {
  using Wide = std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>;
  for (size_t i = 0; i < b.count; ++i) {
    Wide acc = 0;
    for (int s = 0; s < b.k; ++s) {
      Wide v = static_cast<const T*>(b.sources[s])[i];
      if (b.initial[s] && b.scaling->prescale != 1.0)
        v = to_integer<Wide>(static_cast<double>(v) * b.scaling->prescale);
      acc = s == 0 ? v : Op::apply(acc, v);
    }
    if (b.complete) {
      acc = static_cast<Wide>(acc / static_cast<Wide>(b.scaling->divisor));
      if (b.scaling->postscale != 1.0) acc = to_integer<Wide>(static_cast<double>(acc) * b.scaling->postscale);
    }
    for (int d = 0; d < b.m; ++d) static_cast<T*>(b.targets[d])[i] = static_cast<T>(acc);
  }
}

// Bitwise operators work on bytes, whatever the type.
template <size_t Size, class Op>
void combine_bits(const Block& b) {
  Block bytes = b;
  bytes.count *= Size;
  combine<uint8_t, Op, Factors::none>(bytes);
}

template <class Op, class... Ops>
constexpr bool is_one_of = (std::is_same_v<Op, Ops> || ...);

// Signed integers wrap around like unsigned ones; only their order differs.
template <class T, class Op>
constexpr Combine combine_integers() {
  if constexpr (is_one_of<Op, BitAnd, BitOr, BitXor>) return combine_bits<sizeof(T), Op>;
  else if constexpr (is_one_of<Op, Minimum, Maximum>) return combine<T, Op, Factors::none>;
  else return combine<std::make_unsigned_t<T>, Op, Factors::none>;
}

template <class T, class Op, Factors factors>
constexpr Combine combine_reals() {
  if constexpr (is_converted<T>) return combine_converted<T, Op, factors>;
  else return combine<T, Op, factors>;
}

template <class Real, class Op, bool Scaled>
void combine_complex(const Block& b) {
  using T = Complex<Real>;
  if constexpr (std::is_same_v<Op, Sum>) {  // real and imaginary parts separately
    Block parts = b;
    parts.count *= 2;
    return combine<Real, Op, Scaled ? Factors::scaling : Factors::none>(parts);
  }
  for (size_t i = 0; i < b.count; ++i) {
    T acc{};
    for (int s = 0; s < b.k; ++s) {
      T v = static_cast<const T*>(b.sources[s])[i];
      if (Scaled && b.initial[s]) v = v * static_cast<Real>(b.scaling->prescale);
      acc = s == 0 ? Op::first(v) : Op::apply(acc, v);
    }
    if (Scaled && b.complete)
      acc = acc / static_cast<Real>(b.scaling->divisor) * static_cast<Real>(b.scaling->postscale);
    for (int d = 0; d < b.m; ++d) static_cast<T*>(b.targets[d])[i] = acc;
  }
}

template <class T, class Op, Kind kind, bool taken, bool scalable>
constexpr Kernel make_kernel() {
  Kernel kernel;
  if constexpr (!taken) {
    return kernel;
  } else if constexpr (kind == Kind::boolean) {
    kernel.plain = combine_bits<sizeof(T), typename OnBooleans<Op>::type>;
  } else if constexpr (kind == Kind::real) {
    kernel.normalises = Op::normalises;
    kernel.plain = combine_reals<T, Op, Factors::none>();
    if constexpr (scalable) kernel.scaled = combine_reals<T, Op, Factors::scaling>();
    if constexpr (std::is_same_v<Op, Sum>) kernel.weighted = combine_reals<T, Op, Factors::weights>();
  } else if constexpr (kind == Kind::complex) {
    using Real = decltype(T::real);
    kernel.plain = combine_complex<Real, Op, false>;
    kernel.scaled = combine_complex<Real, Op, true>;
  } else {
    kernel.normalises = Op::normalises;
    kernel.plain = combine_integers<T, Op>();
    if constexpr (scalable) kernel.scaled = combine_scaled_integers<T, Op>;
  }
  return kernel;
}

template <class Op>
constexpr bool scalable = is_one_of<Op, Sum, Product, Minimum, Maximum>;

template <class T, Kind kind>
Kernel kernel_of_type(Operator op) {
  switch (op) {
#define PC_CASE(name, functor, takes, meaning) \
  case Operator::name: return make_kernel<T, functor, kind, ((takes) & taken_kind(kind)) != 0, scalable<functor>>();
    PC_OPERATORS(PC_CASE)
#undef PC_CASE
    default: return {};
  }
}

}  // namespace

namespace PC_ISA {

void copy(void* to, const void* from, size_t bytes) {
  copy_registers(static_cast<char*>(to), static_cast<const char*>(from), bytes);
}

Kernel kernel_for(Dtype dtype, Operator op) {
  switch (dtype) {
#define PC_CASE(name, type, kind) \
  case Dtype::name: return kernel_of_type<type, Kind::kind>(op);
    PC_DTYPES(PC_CASE)
#undef PC_CASE
    default: return {};
  }
}

}  // namespace PC_ISA
}  // namespace pc
