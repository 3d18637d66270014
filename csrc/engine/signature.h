// What an operation is: the part that ranks must agree on.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "dtype/table.h"

namespace pc::engine {

constexpr int32_t kMostRanks = 256;
constexpr int32_t kMostDims = 8;

// A set of ranks.
struct RankSet {
  std::array<uint64_t, kMostRanks / 64> words{};
  void add(int32_t rank) { words[rank / 64] |= uint64_t{1} << rank % 64; }
  void remove(int32_t rank) { words[rank / 64] &= ~(uint64_t{1} << rank % 64); }
  bool has(int32_t rank) const { return (words[rank / 64] >> rank % 64 & 1) != 0; }
  bool none() const { return *this == RankSet{}; }
  bool operator==(const RankSet&) const = default;
  RankSet operator|(const RankSet& other) const;
  static RankSet first(int32_t count);
};

// clang-format off
// X(name, whether several may be fused)
#define PC_ENGINE_COLLECTIVES(X) \
  X(allreduce, true)             \
  X(adasum, false)               \
  X(broadcast, false)            \
  X(allgather, false)            \
  X(alltoall, false)             \
  X(reducescatter, false)        \
  X(barrier, false)              \
  X(join, false)                 \
  X(call, false)
// clang-format on

enum class Kind : uint8_t {
#define PC_ENUM(name, fused) name,
  PC_ENGINE_COLLECTIVES(PC_ENUM)
#undef PC_ENUM
      count
};
const char* name_of(Kind kind);
bool is_fused(Kind kind);

// What the ranks must agree on.
struct Signature {
  Kind kind = Kind::barrier;
  Dtype dtype = Dtype::count;  // count: no array
  bool device = false;         // it is in GPU memory
  Operator op = Operator::sum;
  int32_t root = -1;
  int32_t dims = 0;
  std::array<int64_t, kMostDims> shape{};  // -1: may differ; of more dimensions the last holds the product
  double prescale = 1.0, postscale = 1.0;
  uint64_t group = 0;    // of the names submitted together, whatever their order; 0: alone
  int32_t together = 1;  // how many
  // Factors are compared by their bits: two ranks that both give NaN agree.
  bool operator==(const Signature& other) const;
  bool fuses_with(const Signature& other) const;
  // Whether the core has code for it; all others are run by Python.
  bool is_of_core() const { return kind == Kind::allreduce && !device; }
  std::string describe() const;
};

}  // namespace pc::engine
