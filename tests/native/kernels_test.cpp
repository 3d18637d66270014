// The combining kernels of every instruction set of this machine, compared with the reference.
#include <algorithm>
#include <bit>
#include <cstring>
#include <random>
#include <vector>

#include "check.h"
#include "instruction_sets.h"
#include "reference.h"

namespace pc::test {
namespace {

std::vector<Operator> operators() {
  std::vector<Operator> all;
  for (uint8_t o = 0; o < static_cast<uint8_t>(Operator::custom); ++o) all.push_back(static_cast<Operator>(o));
  return all;
}

template <class T> struct Type {};

// Calls body(Type<T>, op, kernel, what) for every ordered element type and operator, with each instruction set.
template <class Body>
void for_each_kernel(const Body& body) {
  for (const InstructionSet& set : instruction_sets()) {
    for (const Operator op : operators()) {
      const std::string what = text(set.name, " ", name_of(op), " ");
#define PC_CASE(name, T, kind) \
  if constexpr (Kind::kind != Kind::complex) body(Type<T>{}, op, set.kernel_for(Dtype::name, op), what + #name);
      PC_DTYPES(PC_CASE)
#undef PC_CASE
    }
  }
}

// Calls body(Type<T>, sum's kernel, what) for every small format of floating point, with each instruction set.
template <class Body>
void for_each_small_format(const Body& body) {
  for_each_kernel([&]<class T>(Type<T> type, Operator op, const Kernel& kernel, const std::string& what) {
    if constexpr (requires { T::bits; } && !std::is_same_v<T, boolean>)
      if (op == Operator::sum) body(type, kernel, what);
  });
}

const Scaling kNone;

// Any bit pattern: small ones, large ones, and for floats infinities, NaNs and subnormals.
template <class T>
T any_value(std::mt19937_64& random) {
  if constexpr (std::is_same_v<T, boolean>) {
    return {static_cast<uint8_t>(random() & 1)};
  } else if constexpr (std::is_same_v<T, float> || std::is_same_v<T, double>) {
    switch (random() % 16) {
      case 0: return std::numeric_limits<T>::infinity();
      case 1: return std::numeric_limits<T>::quiet_NaN();
      case 2: return std::numeric_limits<T>::denorm_min();
      case 3: return -T{0};
      default:
        return static_cast<T>(
            std::ldexp(static_cast<T>(static_cast<int64_t>(random())), -63 + static_cast<int>(random() % 20)));
    }
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(random() % 4 == 0 ? random() % 7 : random());
  } else {
    return {static_cast<decltype(T::bits)>(random())};
  }
}

// Equal bits; all NaNs are equivalent, and so are the two zeros.
template <class T>
bool same(T a, T b) {
  const auto x = Meaning<T>::load(a), y = Meaning<T>::load(b);
  return x == y || (x != x && y != y);
}

template <class T>
std::string shown(T v) {
  return text(+Meaning<T>::load(v));
}

// One call of a kernel and its expected result.  Targets may be sources; all pointers may be unaligned.
template <class T>
struct Trial {
  Trial(int k, int m, size_t count, bool alias, size_t shift, std::mt19937_64& random) : count(count) {
    for (int s = 0; s < k; ++s) {
      auto& column = given.emplace_back(count);
      for (T& v : column) v = any_value<T>(random);
      auto& memory = storage.emplace_back(count + 2 * kGuard + shift);
      std::copy(column.begin(), column.end(), memory.begin() + kGuard + shift);
      sources.push_back(memory.data() + kGuard + shift);
      initial.push_back(static_cast<char>(s % 2 == 0));
    }
    for (int d = 0; d < m; ++d) {
      if (alias && d < k) {
        targets.push_back(const_cast<void*>(sources[k - 1 - d]));
        continue;
      }
      auto& memory = storage.emplace_back(count + 2 * kGuard + shift);
      targets.push_back(memory.data() + kGuard + shift);
    }
  }
  Block block(const Scaling& scaling, bool complete, const bool* streamed) {
    return {sources.data(),
            reinterpret_cast<const bool*>(initial.data()),
            targets.data(),
            static_cast<int>(sources.size()),
            static_cast<int>(targets.size()),
            count,
            complete,
            &scaling,
            nullptr,
            streamed};
  }
  // Nothing before or after a target's elements was touched.
  bool guarded() const {
    for (const auto& memory : storage) {
      const auto bytes = reinterpret_cast<const unsigned char*>(memory.data());
      for (size_t i = 0; i < kGuard * sizeof(T); ++i)
        if (bytes[i] != 0 || bytes[memory.size() * sizeof(T) - 1 - i] != 0) return false;
    }
    return true;
  }
  const T* target(size_t d) const { return static_cast<const T*>(targets[d]); }

  static constexpr size_t kGuard = 8;
  size_t count;
  std::vector<std::vector<T>> given, storage;
  std::vector<const void*> sources;
  std::vector<void*> targets;
  std::vector<char> initial;
};

constexpr size_t kCounts[] = {0, 1, 3, 4, 5, 63, 64, 65, 255, 256, 300, 1031};

// expected(trial, i) -> T
template <class T, class Run, class Expected>
void compare(const std::string& what, const Run& run, const Expected& expected) {
  std::mt19937_64 random(7);
  for (const size_t count : kCounts) {
    for (const int k : {1, 2, 3, 5}) {
      for (int variant = 0; variant < 4; ++variant) {
        const int m = 1 + variant % 2;
        Trial<T> trial(k, m, count, variant >= 2, variant == 3 ? 1 : 0, random);
        run(trial, variant);
        for (int d = 0; d < m; ++d)
          for (size_t i = 0; i < count; ++i)
            PC_CHECK(same(trial.target(d)[i], expected(trial, i)), what, ", k=", k, " count=", count,
                     " variant=", variant, " element ", i, ": got ", shown(trial.target(d)[i]), " for ",
                     shown(expected(trial, i)));
        PC_CHECK(trial.guarded(), what, ", k=", k, " count=", count, ": wrote outside its targets");
      }
    }
  }
}

template <class T>
T reduced(Operator op, const Trial<T>& trial, size_t i) {
  using M = Meaning<T>;
  auto acc = M::load(trial.given[0][i]);
  if (op == Operator::land || op == Operator::lor) acc = static_cast<decltype(acc)>(acc != decltype(acc){} ? 1 : 0);
  for (size_t s = 1; s < trial.given.size(); ++s) acc = apply(op, acc, M::load(trial.given[s][i]));
  return M::store(acc);
}

// Raw contributions times prescale, the final result divided by divisor and times postscale, in the accumulator's type.
template <class T>
T scaled(Operator op, const Scaling& scaling, const Trial<T>& trial, size_t i) {
  using M = Meaning<T>;
  using A = typename M::Accumulator;
  using Wide =
      std::conditional_t<!std::is_integral_v<A>, A, std::conditional_t<std::is_signed_v<A>, int64_t, uint64_t>>;
  using Factor = std::conditional_t<std::is_integral_v<A>, double, A>;
  const auto contribution = [&](size_t s) {
    const auto raw = static_cast<Wide>(M::load(trial.given[s][i]));
    return trial.initial[s] ? static_cast<Wide>(raw * static_cast<Factor>(scaling.prescale)) : raw;
  };
  Wide acc = contribution(0);
  for (size_t s = 1; s < trial.given.size(); ++s) acc = apply(op, acc, contribution(s));
  acc = static_cast<Wide>(acc / static_cast<Wide>(scaling.divisor));
  return M::store(static_cast<A>(static_cast<Wide>(acc * static_cast<Factor>(scaling.postscale))));
}

PC_TEST(kernels_reduce_as_the_reference_does) {
  for_each_kernel([]<class T>(Type<T>, Operator op, const Kernel& kernel, const std::string& what) {
    if (kernel.plain == nullptr) return;
    compare<T>(
        what,
        [&](Trial<T>& trial, int variant) {
          constexpr bool streamed[] = {true, true};
          kernel.plain(trial.block(kNone, true, variant == 1 ? streamed : nullptr));
        },
        [op](const Trial<T>& trial, size_t i) { return reduced(op, trial, i); });
  });
}

// Small integers, so that no conversion from double to integer overflows (undefined behavior).
PC_TEST(kernels_scale_as_the_reference_does) {
  constexpr Scaling scaling{0.5, 3, 2.25};
  for_each_kernel([&]<class T>(Type<T>, Operator op, const Kernel& kernel, const std::string& what) {
    if (kernel.scaled == nullptr || (std::is_integral_v<T> && op == Operator::prod)) return;
    const auto shrink = [](Trial<T>& trial) {
      if constexpr (std::is_integral_v<T>)
        for (size_t s = 0; s < trial.given.size(); ++s)
          for (size_t i = 0; i < trial.count; ++i)
            static_cast<T*>(const_cast<void*>(trial.sources[s]))[i] = trial.given[s][i] =
                static_cast<T>(trial.given[s][i] % 9);
    };
    compare<T>(
        what + " scaled",
        [&](Trial<T>& trial, int) {
          shrink(trial);
          kernel.scaled(trial.block(scaling, true, nullptr));
        },
        [&](const Trial<T>& trial, size_t i) { return scaled<T>(op, scaling, trial, i); });
  });
}

PC_TEST(kernels_take_what_the_table_says) {
  for (const InstructionSet& set : instruction_sets()) {
    for (uint8_t d = 0; d < static_cast<uint8_t>(Dtype::count); ++d) {
      const auto dtype = static_cast<Dtype>(d);
      for (const Operator op : operators()) {
        const bool taken = takes(op, dtype);  // as tests/comm/collectives/test_reductions.py checks
        const bool scales = op <= Operator::max && kind_of(dtype) != Kind::boolean;
        const Kernel kernel = set.kernel_for(dtype, op);
        PC_CHECK((kernel.plain != nullptr) == taken, set.name, " ", name_of(op), " ", name_of(dtype));
        PC_CHECK((kernel.scaled != nullptr) == (taken && scales), set.name, " scaled ", name_of(op), " ",
                 name_of(dtype));
      }
    }
  }
}

void add_ints(void* into, const void* from, int64_t count) {
  for (int64_t i = 0; i < count; ++i) static_cast<int32_t*>(into)[i] += static_cast<const int32_t*>(from)[i];
}

PC_TEST(kernels_call_a_users_operator_block_by_block) {
  std::mt19937_64 random(3);
  for (const size_t count : {0, 1, 1023, 1024, 1025, 5000}) {
    for (const bool alias : {false, true}) {
      Trial<int32_t> trial(3, 2, count, alias, 0, random);
      Block block = trial.block(kNone, true, nullptr);
      block.custom = add_ints;
      combine_custom(block, sizeof(int32_t));
      for (size_t i = 0; i < count; ++i)
        for (int d = 0; d < 2; ++d)
          PC_CHECK(trial.target(d)[i] == reduced(Operator::sum, trial, i), "count=", count, " alias=", alias,
                   " element ", i);
      PC_CHECK(trial.guarded(), "count=", count);
    }
  }
}

PC_TEST(kernels_copy_to_all_targets_but_the_source) {
  std::mt19937_64 random(4);
  Trial<int32_t> trial(1, 2, 100, true, 0, random);
  copy_block(trial.block(kNone, false, nullptr), sizeof(int32_t));
  for (int d = 0; d < 2; ++d)
    PC_CHECK(std::memcmp(trial.target(d), trial.given[0].data(), 100 * sizeof(int32_t)) == 0, "target ", d);
}

// One source to several targets at any alignment, some of them past the caches.
PC_TEST(copies_to_targets_of_both_kinds) {
  for (const size_t bytes : {size_t{1}, size_t{63}, size_t{64}, size_t{300}, size_t{4096}, size_t{20000}}) {
    for (size_t shift = 0; shift < 70; shift += 23) {
      std::vector<uint8_t> source(bytes), memory(3 * (bytes + 128), 0);
      for (size_t i = 0; i < bytes; ++i) source[i] = static_cast<uint8_t>(1 + i % 251);
      for (int which = 0; which < 8; ++which) {
        std::fill(memory.begin(), memory.end(), uint8_t{0});
        const bool streamed[] = {(which & 1) != 0, (which & 2) != 0, (which & 4) != 0}, initial = true;
        void* targets[3];
        for (size_t d = 0; d < 3; ++d) targets[d] = memory.data() + d * (bytes + 128) + shift + d;
        const void* from = source.data();
        copy_block({&from, &initial, targets, 1, 3, bytes, true, &kNone, nullptr, streamed}, 1);
        size_t written = 0;
        for (size_t d = 0; d < 3; ++d)
          PC_CHECK(std::memcmp(targets[d], from, bytes) == 0, "target", d, "of", bytes, "bytes, streamed", which);
        for (const uint8_t byte : memory) written += byte != 0;
        PC_CHECK(written == 3 * bytes, "nothing else is written", bytes, which);
      }
    }
  }
}

// To whole lines and others, from every distance within a line and far away.
PC_TEST(copies_past_the_caches) {
  constexpr size_t bytes = 20000;
  alignas(4096) static unsigned char memory[bytes + 4096], given[bytes + 4096];
  for (size_t i = 0; i < sizeof given; ++i) given[i] = static_cast<unsigned char>(i % 251);
  for (const size_t into : {size_t{0}, size_t{64}, size_t{70}}) {
    for (size_t from = 0; from < 2300; from += from < 140 ? 1 : 719) {
      std::fill(std::begin(memory), std::end(memory), static_cast<unsigned char>(255));
      const void* source = given + from;
      void* target = memory + into;
      const bool streamed = true, initial = true;
      copy_block({&source, &initial, &target, 1, 1, bytes, true, &kNone, nullptr, &streamed}, 1);
      const auto untouched = std::count(std::begin(memory), std::end(memory), static_cast<unsigned char>(255));
      PC_CHECK(std::memcmp(target, source, bytes) == 0, "from", from, "to", into);
      PC_CHECK(untouched == static_cast<std::ptrdiff_t>(sizeof memory - bytes), "nothing else is written", from, into);
    }
  }
}

// From one source to one target.
template <class Run>
void run_one(const Run& run, const void* source, void* target, size_t count, const Scaling& scaling) {
  const bool initial = true;
  run({&source, &initial, &target, 1, 1, count, false, &scaling, nullptr});
}

// Every pattern of a small format survives decoding and encoding, also in vector code; a NaN stays a NaN of its sign.
template <class T>
void check_round_trip(const Kernel& kernel, const std::string& what) {
  const SmallFormat& format = Meaning<T>::format();
  std::vector<T> from(format.patterns()), into(format.patterns());
  for (uint32_t i = 0; i < format.patterns(); ++i) from[i].bits = static_cast<decltype(T::bits)>(i);
  run_one(kernel.plain, from.data(), into.data(), from.size(), kNone);
  for (uint32_t i = 0; i < format.patterns(); ++i) {
    const bool sound = format.is_nan(i) ? format.is_nan(into[i].bits) &&
                                              into[i].bits / (format.patterns() / 2) == i / (format.patterns() / 2)
                                        : into[i].bits == i;
    PC_CHECK(sound, what, " pattern ", i, " became ", +into[i].bits);
  }
}

// Between every two neighbors: the middle rounds to the even one, values next to the middle to the nearer one.
template <class T>
void check_rounding(const Kernel& kernel, const std::string& what) {
  const SmallFormat& format = Meaning<T>::format();
  std::vector<T> pair[2];
  std::vector<uint32_t> expected;
  for (uint32_t i = 0; i + 1 < format.patterns() / 2; ++i) {
    if (format.is_nan(i + 1) || std::isinf(format.decode(i + 1))) continue;
    const double gap = format.decode(i + 1) - format.decode(i);
    for (const double part : {0.25, 0.5, 0.75}) {  // exact in float: value + part * gap
      const uint32_t fraction = format.encode(part * gap);
      if (format.decode(fraction) != part * gap) continue;  // smaller than the format's smallest
      pair[0].push_back({static_cast<decltype(T::bits)>(i)});
      pair[1].push_back({static_cast<decltype(T::bits)>(fraction)});
      expected.push_back(part < 0.5 ? i : part > 0.5 ? i + 1 : i + i % 2);
    }
  }
  PC_CHECK(expected.size() > format.patterns() / 3, what);
  std::vector<T> into(expected.size());
  const void* sources[] = {pair[0].data(), pair[1].data()};
  void* target = into.data();
  const bool initial[] = {true, true};
  kernel.plain({sources, initial, &target, 2, 1, into.size(), true, &kNone, nullptr});
  for (size_t i = 0; i < into.size(); ++i)
    PC_CHECK(into[i].bits == expected[i], what, ": ", shown(pair[0][i]), " + ", shown(pair[1][i]));
}

PC_TEST(conversions_round_trip_and_round_to_nearest_ties_to_even) {
  for_each_small_format([]<class T>(Type<T>, const Kernel& kernel, const std::string& what) {
    if constexpr (!std::is_same_v<T, float8_e8m0fnu>) {
      check_round_trip<T>(kernel, what);
      check_rounding<T>(kernel, what);
    }
  });
}

// Floats of all magnitudes, through the multiplication by prescale: overflow, subnormals, infinities.
PC_TEST(conversions_encode_any_float) {
  for_each_small_format([]<class T>(Type<T>, const Kernel& kernel, const std::string& what) {
    std::mt19937_64 random(5);
    for (int trial = 0; trial < 400; ++trial) {
      T from[64], into[64];
      for (T& v : from) v = any_value<T>(random);
      const Scaling scaling{
          std::ldexp(1.0 + static_cast<double>(random() % 1024) / 1024, static_cast<int>(random() % 40) - 20)};
      run_one(kernel.scaled, from, into, 64, scaling);
      for (int i = 0; i < 64; ++i) {
        const T wanted = Meaning<T>::store(Meaning<T>::load(from[i]) * static_cast<float>(scaling.prescale));
        const bool nan = same(into[i], wanted) && Meaning<T>::load(wanted) != Meaning<T>::load(wanted);
        PC_CHECK(into[i].bits == wanted.bits || nan, what, ": ", shown(from[i]), " * ", scaling.prescale, " is ",
                 shown(into[i]), ", not ", shown(wanted));
      }
    }
  });
}

}  // namespace
}  // namespace pc::test
