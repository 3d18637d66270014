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

template <class T>
constexpr size_t kRun = static_cast<size_t>(Lanes<T>::count) * kUnroll;  // elements

// The results of a run.
template <class T>
using Registers = typename Lanes<T>::Vector[kUnroll];

// All sources combined left to right.  `load(s, u)` is register u of source s.
template <class T, class Op, Factors factors, int registers = kUnroll, class Load>
inline void reduce(const Block& b, Registers<T>& acc, Load load) {
  using L = Lanes<T>;
  for (int s = 0; s < b.k; ++s) {
#pragma GCC unroll 4
    for (int u = 0; u < registers; ++u) {
      auto v = load(s, u);
      if constexpr (factors == Factors::scaling) {
        if (b.initial[s]) v = v * static_cast<typename L::Scalar>(b.scaling->prescale);
      }
      if constexpr (factors == Factors::weights) v = v * static_cast<typename L::Scalar>(b.weights[s]);
      acc[u] = s == 0 ? Op::first(v) : Op::apply(acc[u], v);
    }
  }
  if constexpr (factors == Factors::scaling) {
    if (b.complete) {
      for (auto& v : acc)
        v = v / static_cast<typename L::Scalar>(b.scaling->divisor) *
            static_cast<typename L::Scalar>(b.scaling->postscale);
    }
  }
}

template <class T, class Op, Factors factors>
inline void reduce_run(const Block& b, size_t at, Registers<T>& acc) {
  reduce<T, Op, factors>(b, acc, [&](int s, int u) {
    return Lanes<T>::load(static_cast<const T*>(b.sources[s]) + at + u * Lanes<T>::count);
  });
}

template <class T>
inline void store(T* into, const Registers<T>& results) {
  using L = Lanes<T>;
#pragma GCC unroll 4
  for (int u = 0; u < kUnroll; ++u) {
    const auto packed = L::pack(results[u]);
    std::memcpy(static_cast<void*>(into + u * L::count), &packed, sizeof packed);
  }
}

template <class T, class Op, Factors factors>
inline void combine_run(const Block& b, size_t at) {
  Registers<T> acc = {};
  reduce_run<T, Op, factors>(b, at, acc);
  for (int d = 0; d < b.m; ++d) {
    T* into = static_cast<T*>(b.targets[d]) + at;
    if (b.streamed != nullptr && b.streamed[d] && reinterpret_cast<uintptr_t>(into) % kLine == 0) [[unlikely]] {
#pragma GCC unroll 4
      for (int u = 0; u < kUnroll; ++u) stream_packed(into + u * Lanes<T>::count, Lanes<T>::pack(acc[u]));
    } else {
      store<T>(into, acc);
    }
  }
}

// The first or the last run of the block; all of a block that is shorter, through a padded buffer: the arithmetic is
// the same.
template <class T, class Op, Factors factors>
[[gnu::noinline]] void reduce_end(const Block& b, size_t at, Registers<T>& results) {
  T padded[kRun<T>];
  const bool partial = b.count < kRun<T>;
  if (partial) std::memset(static_cast<void*>(padded), 0, sizeof padded);
  Registers<T> acc = {};
  reduce<T, Op, factors>(b, acc, [&](int s, int u) {
    const T* from = static_cast<const T*>(b.sources[s]) + at;
    if (partial && u == 0) std::memcpy(static_cast<void*>(padded), from, b.count * sizeof(T));
    return Lanes<T>::load((partial ? padded : from) + u * Lanes<T>::count);
  });
  std::memcpy(results, acc, sizeof acc);
}

template <class T>
[[gnu::noinline]] void store_end(const Block& b, size_t at, const Registers<T>& results) {
  T padded[kRun<T>];
  const bool partial = b.count < kRun<T>;
  if (partial) store<T>(padded, results);
  for (int d = 0; d < b.m; ++d) {
    T* into = static_cast<T*>(b.targets[d]) + at;
    if (partial) std::memcpy(static_cast<void*>(into), padded, b.count * sizeof(T));
    else store<T>(into, results);
  }
}

// One by one, in the first element of a register.  A padded buffer takes longer for a few: the load of a register waits
// for the stores of its parts.
template <class T, class Op, Factors factors>
[[gnu::noinline]] void combine_few(const Block& b) {
  for (size_t i = 0; i < b.count; ++i) {
    Registers<T> acc = {};
    reduce<T, Op, factors, 1>(b, acc,
                              [&](int s, int) { return typename Lanes<T>::Vector{element_of<T>(b.sources[s], i)}; });
    for (int d = 0; d < b.m; ++d) set_element<T>(b.targets[d], i, acc[0][0]);
  }
}

// A load waits for recent stores to addresses with the same last 12 bits: the processor compares no more at first.
// Positive if loads from `source` meet such stores to `target` in ascending order, negative if in descending order; the
// greater, the more recent the stores.
inline int waits(const void* target, const void* source) {
  constexpr int page = 4096, recent = 1024;
  const uintptr_t distance = reinterpret_cast<uintptr_t>(target) - reinterpret_cast<uintptr_t>(source);
  const int ahead = static_cast<int>(distance % page);
  if (std::min(ahead, page - ahead) < static_cast<int>(kLine)) return 0;  // few loads wait
  return ahead < page / 2 ? std::max(0, recent - ahead) : std::min(0, page - ahead - recent);
}

// The order in which sources wait less for the stores to the first target.
[[gnu::noinline]] bool descending_is_better(const Block& b) {
  int waiting = 0;
  for (int s = 0; s < b.k; ++s) waiting += waits(b.targets[0], b.sources[s]);
  return waiting > 0;
}

// Cells, which a peer has written, begin at lines: loads from there across two lines cost more than such stores do.
inline bool has_aligned_source(const Block& b) {
  bool any = false;
  for (int s = 0; s < b.k; ++s) any = any || reinterpret_cast<uintptr_t>(b.sources[s]) % kLine == 0;
  return any;
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
  constexpr size_t run = kRun<T>, large = 4096 / sizeof(T);  // aligning what is smaller takes longer than it saves
  constexpr bool unconverted = std::is_same_v<T, typename Lanes<T>::Scalar>;
  if constexpr (unconverted) {
    if (b.count <= 4) return combine_few<T, Op, factors>(b);
  }
  Registers<T> first, last;
  if (b.count < run) {
    reduce_end<T, Op, factors>(b, 0, first);
    return store_end<T>(b, 0, first);
  }
  const bool aligns = b.streamed != nullptr || (b.count >= large && !has_aligned_source(b));
  const size_t head = aligns ? elements_before_line<T>(b) % run : 0;
  size_t runs = (b.count - head) / run, at = head;
  const bool tail = head + runs * run != b.count;
  // The ends overlap other runs: reduced before anything is written, as a target may be a source, and stored last.
  if (head != 0) reduce_end<T, Op, factors>(b, 0, first);
  if (tail) reduce_end<T, Op, factors>(b, b.count - run, last);
  const bool descending = b.count >= large && descending_is_better(b);
  if (descending) at += (runs - 1) * run;
  for (const size_t step = descending ? -run : run; runs != 0; --runs, at += step) combine_run<T, Op, factors>(b, at);
  if (b.streamed != nullptr) stream_fence();
  if (head != 0) store_end<T>(b, 0, first);
  if (tail) store_end<T>(b, b.count - run, last);
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
      Wide v = element_of<T>(b.sources[s], i);
      if (b.initial[s] && b.scaling->prescale != 1.0)
        v = to_integer<Wide>(static_cast<double>(v) * b.scaling->prescale);
      acc = s == 0 ? v : Op::apply(acc, v);
    }
    if (b.complete) {
      acc = static_cast<Wide>(acc / static_cast<Wide>(b.scaling->divisor));
      if (b.scaling->postscale != 1.0) acc = to_integer<Wide>(static_cast<double>(acc) * b.scaling->postscale);
    }
    for (int d = 0; d < b.m; ++d) set_element<T>(b.targets[d], i, static_cast<T>(acc));
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
      T v = element_of<T>(b.sources[s], i);
      if (Scaled && b.initial[s]) v = v * static_cast<Real>(b.scaling->prescale);
      acc = s == 0 ? Op::first(v) : Op::apply(acc, v);
    }
    if (Scaled && b.complete)
      acc = acc / static_cast<Real>(b.scaling->divisor) * static_cast<Real>(b.scaling->postscale);
    for (int d = 0; d < b.m; ++d) set_element<T>(b.targets[d], i, acc);
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
