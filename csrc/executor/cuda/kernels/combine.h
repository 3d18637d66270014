// Combining blocks of elements on a GPU: k sources, reduced left to right, written to m targets, by all threads of a
// block.  Memory is moved 16 bytes at a time if the operands are equally aligned.
#pragma once

#include "executor/cuda/kernels/device.h"
#include "executor/cuda/kernels/elements.h"

namespace pc::cuda {

constexpr int kVectorBytes = sizeof(Vector);

// The operands of a step, in shared memory.
struct Operands {
  char* source[kOperands];
  char* target[kOperands];
  bool initial[kOperands];  // the source is a raw contribution
  double weight[kOperands];  // of a weighted sum
  int32_t k, m;
  bool complete;  // the result holds every contribution
};

struct Threads { int64_t lane, width; };

// What a source's elements are loaded with.
template <class E>
PC_FN auto factor_of(const Operands& o, int s) {
  if constexpr (is_weighted<E>) return static_cast<typename E::A>(o.weight[s]);
  else return o.initial[s];
}

// The run-time count if `Fixed` is 0, else the compile-time one, for which loops are unrolled.
template <int Fixed>
PC_FN constexpr int count_of(int32_t at_run_time) {
  return Fixed == 0 ? at_run_time : Fixed;
}

// The elements in a Word.
template <class E, class Word>
struct Lanes {
  using T = typename E::Element;
  using A = typename E::A;
  static constexpr int count = static_cast<int>(sizeof(Word) / sizeof(T));
  union Bits {
    Word word;
    T element[count];
    PC_FN Bits() {}
  };

  // acc = v or acc op v
  template <class Factor>
  PC_FN static void fold(const E& e, A (&acc)[count], const Word& v, bool is_first, Factor factor) {
    Bits bits;
    bits.word = v;
    A a[count];
#pragma unroll
    for (int i = 0; i < count; ++i) a[i] = e.load(bits.element[i], factor);
    if (!is_first) return apply_to_all(e.op, acc, a);
#pragma unroll
    for (int i = 0; i < count; ++i) acc[i] = e.op.first(a[i]);
  }
  PC_FN static Word pack(const E& e, const A (&acc)[count], bool complete) {
    Bits bits;
#pragma unroll
    for (int i = 0; i < count; ++i) bits.element[i] = e.store(acc[i], complete);
    return bits.word;
  }
};

template <class Word>
PC_FN Word load_word(const char* at) {
  if constexpr (sizeof(Word) == kVectorBytes) return load_vector(at);
  else return *reinterpret_cast<const Word*>(at);
}

template <class Word>
PC_FN void store_word(char* at, const Word& word) {
  if constexpr (sizeof(Word) == kVectorBytes) store_vector(at, word);
  else *reinterpret_cast<Word*>(at) = word;
}

template <int M, class Word>
PC_FN void store_all(const Operands& o, int64_t offset, const Word& v) {
#pragma unroll(M == 0 ? 4 : M)
  for (int d = 0; d < count_of<M>(o.m); ++d) store_word(o.target[d] + offset, v);
}

// `bytes` from `skip` on, a whole number of vectors; all operands are at 16-byte boundaries there.  Loads of `K`
// sources and `Ahead` words are in flight before the first is used.
template <class E, class Word, int K, int M>
PC_FN void combine_words(const E& e, const Operands& o, int64_t skip, int64_t bytes, Threads t) {
  using L = Lanes<E, Word>;
  constexpr int Ahead = K == 0 ? 1 : (K >= 8 ? 1 : 8 / K);
  constexpr int64_t size = sizeof(Word);
  const int64_t words = bytes / size;
  int64_t i = t.lane;
  for (; i + (Ahead - 1) * t.width < words; i += Ahead * t.width) {
    if constexpr (K != 0) {
      Word v[Ahead][K];
#pragma unroll
      for (int a = 0; a < Ahead; ++a)
#pragma unroll
        for (int s = 0; s < K; ++s) v[a][s] = load_word<Word>(o.source[s] + skip + (i + a * t.width) * size);
#pragma unroll
      for (int a = 0; a < Ahead; ++a) {
        typename L::A acc[L::count];
#pragma unroll
        for (int s = 0; s < K; ++s) L::fold(e, acc, v[a][s], s == 0, factor_of<E>(o, s));
        store_all<M>(o, skip + (i + a * t.width) * size, L::pack(e, acc, o.complete));
      }
    } else {
      typename L::A acc[L::count];
#pragma unroll 4
      for (int s = 0; s < o.k; ++s)
        L::fold(e, acc, load_word<Word>(o.source[s] + skip + i * size), s == 0, factor_of<E>(o, s));
      store_all<M>(o, skip + i * size, L::pack(e, acc, o.complete));
    }
  }
  if constexpr (Ahead > 1) {
    for (; i < words; i += t.width) {
      typename L::A acc[L::count];
#pragma unroll
      for (int s = 0; s < K; ++s)
        L::fold(e, acc, load_word<Word>(o.source[s] + skip + i * size), s == 0, factor_of<E>(o, s));
      store_all<M>(o, skip + i * size, L::pack(e, acc, o.complete));
    }
  }
}

// A block of elements: [head, tail) is a whole number of vectors, at 16-byte boundaries in all operands.
struct Split { int64_t head, tail, count; };

// `aligned`: all operands have the same offset from a 16-byte boundary; otherwise there are no vectors.
PC_FN Split split_at_vectors(const char* operand, int64_t element, int64_t count, bool aligned) {
  const auto off = static_cast<int64_t>(reinterpret_cast<uintptr_t>(operand) % kVectorBytes);
  const int64_t head_bytes = (kVectorBytes - off) % kVectorBytes;
  if (!aligned || head_bytes % element != 0 || head_bytes / element >= count) return {count, count, count};
  const int64_t head = head_bytes / element;
  return {head, head + (count - head) * element / kVectorBytes * kVectorBytes / element, count};
}

// Calls `f` with this thread's share of the elements outside the vectors.  A single loop, since its code is long.
template <class F>
PC_FN void at_ends(const Split& split, Threads t, const F& f) {
  for (int64_t i = t.lane; i < split.head + split.count - split.tail; i += t.width)
    f(i < split.head ? i : i - split.head + split.tail);
}

template <class E>
PC_FN void combine_element(const E& e, const Operands& o, int64_t i) {
  using T = typename E::Element;
  typename E::A acc{};
  for (int s = 0; s < o.k; ++s) {
    const auto a = e.load(reinterpret_cast<const T*>(o.source[s])[i], factor_of<E>(o, s));
    acc = s == 0 ? e.op.first(a) : e.op.apply(acc, a);
  }
  const T result = e.store(acc, o.complete);
  for (int d = 0; d < o.m; ++d) reinterpret_cast<T*>(o.target[d])[i] = result;
}

// k sources and m targets in one number.
constexpr int32_t shape_of(int32_t k, int32_t m) { return k * (kOperands + 1) + m; }

// Elements that a thread processes if arithmetic rather than memory is the limit: four.
template <class T>
using FourOf = std::conditional_t<sizeof(T) == 1, uint32_t, std::conditional_t<sizeof(T) == 2, uint64_t, Vector>>;

// The counts used by the topologies are unrolled if memory is the limit: ring, tree and wheel reduce two or three,
// direct up to eight.
template <class E>
PC_FN void combine_aligned(const E& e, const Operands& o, int64_t skip, int64_t bytes, Threads t) {
  if constexpr (E::limit == Limit::memory) {
    switch (shape_of(o.k, o.m)) {
      case shape_of(2, 1): return combine_words<E, Vector, 2, 1>(e, o, skip, bytes, t);
      case shape_of(2, 2): return combine_words<E, Vector, 2, 2>(e, o, skip, bytes, t);
      case shape_of(3, 1): return combine_words<E, Vector, 3, 1>(e, o, skip, bytes, t);
      case shape_of(4, 1): return combine_words<E, Vector, 4, 1>(e, o, skip, bytes, t);
      case shape_of(4, 4): return combine_words<E, Vector, 4, 4>(e, o, skip, bytes, t);
      case shape_of(8, 1): return combine_words<E, Vector, 8, 1>(e, o, skip, bytes, t);
      case shape_of(8, 8): return combine_words<E, Vector, 8, 8>(e, o, skip, bytes, t);
      default: return combine_words<E, Vector, 0, 0>(e, o, skip, bytes, t);
    }
  } else {
    using Word = FourOf<typename E::Element>;
    if constexpr (E::limit == Limit::mixed)
      if (o.k == 2) return combine_words<E, Word, 2, 0>(e, o, skip, bytes, t);
    combine_words<E, Word, 0, 0>(e, o, skip, bytes, t);
  }
}

template <class E>
PC_FN void combine_block(const E& e, const Operands& o, int64_t count, bool aligned, Threads t) {
  constexpr int64_t element = sizeof(typename E::Element);
  const Split split = split_at_vectors(o.source[0], element, count, aligned);
  at_ends(split, t, [&](int64_t i) { combine_element(e, o, i); });
  combine_aligned(e, o, split.head * element, (split.tail - split.head) * element, t);
}

// One source to all targets but itself: a peer may be reading it.
template <class T>
PC_FN void copy_to_all(const Operands& o, int64_t offset, const T& v) {
  for (int d = 0; d < o.m; ++d) {
    if (o.target[d] == o.source[0]) continue;
    if constexpr (sizeof(T) == kVectorBytes) store_vector(o.target[d] + offset, v);
    else *reinterpret_cast<T*>(o.target[d] + offset) = v;
  }
}

PC_FN void copy_vectors(const Operands& o, int64_t skip, int64_t vectors, Threads t) {
  constexpr int Ahead = 8;
  int64_t i = t.lane;
  for (; i + (Ahead - 1) * t.width < vectors; i += Ahead * t.width) {
    Vector v[Ahead];
#pragma unroll
    for (int a = 0; a < Ahead; ++a) v[a] = load_vector(o.source[0] + skip + (i + a * t.width) * kVectorBytes);
#pragma unroll
    for (int a = 0; a < Ahead; ++a) copy_to_all(o, skip + (i + a * t.width) * kVectorBytes, v[a]);
  }
  for (; i < vectors; i += t.width)
    copy_to_all(o, skip + i * kVectorBytes, load_vector(o.source[0] + skip + i * kVectorBytes));
}

// Copies `count` words.
template <class Word>
PC_FN void copy_words(const Operands& o, int64_t count, bool aligned, Threads t) {
  constexpr int64_t word = sizeof(Word);
  if (o.m == 1 && o.target[0] == o.source[0]) return;
  const Split split = split_at_vectors(o.source[0], word, count, aligned);
  at_ends(split, t, [&](int64_t i) { copy_to_all(o, i * word, reinterpret_cast<const Word*>(o.source[0])[i]); });
  copy_vectors(o, split.head * word, (split.tail - split.head) * word / kVectorBytes, t);
}

// The words in which elements are copied; 16-byte elements may be stored at any multiple of 8.
template <int Bytes>
using WordOf =
    std::conditional_t<Bytes == 1, uint8_t,
                       std::conditional_t<Bytes == 2, uint16_t, std::conditional_t<Bytes == 4, uint32_t, uint64_t>>>;

template <int Bytes>
PC_FN void copy_block(const Operands& o, int64_t count, bool aligned, Threads t) {
  using Word = WordOf<Bytes>;
  copy_words<Word>(o, count * (Bytes / static_cast<int64_t>(sizeof(Word))), aligned, t);
}

// The same for a run-time size.
PC_FN void copy_block(const Operands& o, int64_t count, int32_t element, bool aligned, Threads t) {
  switch (element) {
    case 1: return copy_block<1>(o, count, aligned, t);
    case 2: return copy_block<2>(o, count, aligned, t);
    case 4: return copy_block<4>(o, count, aligned, t);
    case 16: return copy_block<16>(o, count, aligned, t);
    default: return copy_block<8>(o, count, aligned, t);
  }
}

}  // namespace pc::cuda
