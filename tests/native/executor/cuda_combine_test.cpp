// A step on a GPU, for every number of sources and targets up to the largest number of ranks of a communicator: the
// kernels' source compiled by g++, one thread.
#include <algorithm>
#include <vector>

#include "check.h"
#include "executor/cuda/kernels/combine.h"

namespace pc::test {
namespace {

constexpr int32_t kMost = cuda::kMostRanks;
constexpr int64_t kCount = 153;  // even of the smallest elements: unrolled loops, their remainder, and a partial vector
constexpr int64_t kRow = 160;  // elements from one operand to the next: at 16 bytes for every type

template <class T>
T value(int32_t source, int64_t i) {
  return static_cast<T>((source * 37 + i * 11) % 101);
}

// Checks that exactly the first `m` targets hold the expected values; returns the index of the first wrong one, or -1.
template <class T>
int32_t wrong_target(const std::vector<T>& targets, int32_t m, const std::vector<T>& expected) {
  for (int32_t d = 0; d < kMost; ++d) {
    const auto row = targets.begin() + d * kRow;
    const bool right = d < m ? std::equal(expected.begin(), expected.end(), row)
                             : std::all_of(row, row + kRow, [](T v) { return v == T{}; });
    if (!right) return d;
  }
  return -1;
}

template <class E>
void every_shape(const char* elements_name) {
  using T = typename E::Element;
  const E elements(static_cast<int32_t>(Operator::sum), {1.0, 1.0, 1.0, 0});
  // A vector of vectors would not be aligned to 16 bytes.
  std::vector<T> sources(kRow * kMost), targets(kRow * kMost), expected(kRow);
  for (int32_t s = 0; s < kMost; ++s)
    for (int64_t i = 0; i < kRow; ++i) sources[static_cast<size_t>(s * kRow + i)] = value<T>(s, i);
  for (int32_t k = 1; k <= kMost; ++k) {
    for (int64_t i = 0; i < kCount; ++i) {
      T& sum = expected[static_cast<size_t>(i)];
      sum = static_cast<T>(sum + value<T>(k - 1, i));
    }
    for (int32_t m = 1; m <= kMost; ++m) {
      cuda::Operands o{};
      o.k = k;
      o.m = m;
      for (int32_t s = 0; s < k; ++s) o.source[s] = reinterpret_cast<char*>(sources.data() + s * kRow);
      for (int32_t d = 0; d < m; ++d) o.target[d] = reinterpret_cast<char*>(targets.data() + d * kRow);
      std::fill(targets.begin(), targets.end(), T{});
      cuda::combine_block(elements, o, kCount, true, {0, 1});
      const int32_t wrong = wrong_target(targets, m, expected);
      PC_CHECK(wrong < 0, elements_name, ", ", k, " sources to ", m, " targets: target ", wrong);
      if (wrong >= 0) return;
    }
  }
}

}  // namespace

PC_TEST(steps_of_every_shape) {
  every_shape<cuda::Elements<float, cuda::Fixed<Sum>>>("float32");  // unrolled sums
  every_shape<cuda::Elements<double, cuda::Fixed<Sum>>>("float64");
  every_shape<cuda::Elements<int8_t, cuda::Chosen<int8_t>>>("int8");
  every_shape<cuda::Elements<uint16_t, cuda::Chosen<uint16_t>>>("uint16");
  every_shape<cuda::Elements<int64_t, cuda::Chosen<int64_t>>>("int64");
  every_shape<cuda::ScaledIntegers<int32_t>>("int32");
}

}  // namespace pc::test
