// The agreement where ranks share no memory: every rank hears every announcement in the same order, and concludes the same.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/policy.h"
#include "executor/control.h"

namespace pc::engine {

// Of any number of ranks.
struct ManyRanks {
  std::vector<bool> bits;
  bool has(int32_t rank) const { return bits[static_cast<size_t>(rank)]; }
  void add(int32_t rank) { bits[static_cast<size_t>(rank)] = true; }
};

// An operation that ranks have announced.
struct AgreedOperation {
  std::string name;
  Round round;
  ManyRanks announced;
  std::vector<int32_t> absent;  // once it is complete: who takes part with nothing, having joined
  std::vector<int64_t> rows;  // of each rank
  std::string difference;  // how ranks differ; empty: they agree
};

class Agreement {
 public:
  using Batch = std::vector<AgreedOperation>;

  // `world_ranks`: of the ranks.
  explicit Agreement(std::vector<int32_t> world_ranks);

  // Throws InvalidArgument if the rank has announced the operation already.
  void announce(int32_t rank, const Announcement& item);
  // All that is complete, in batches.  A round of messages takes a cycle anyway: nothing waits for more to fuse with.
  std::vector<Batch> cut(int64_t threshold);
  // Operations that wait for ranks.
  int32_t waiting() const { return static_cast<int32_t>(waiting_.size()); }
  // Those that have waited for `seconds`, a line each; `reporter`: only those for which this rank reports, -1: all.
  std::string report(double seconds, int32_t reporter) const;

 private:
  struct Carrier;
  int32_t size() const { return static_cast<int32_t>(world_ranks_.size()); }
  bool settle(AgreedOperation& operation);
  std::string number(int32_t rank) const { return rank_number(rank, world_ranks_[static_cast<size_t>(rank)]); }

  std::vector<int32_t> world_ranks_;
  std::unordered_map<std::string, AgreedOperation> waiting_;
  std::vector<AgreedOperation> ready_;  // in the order in which they have become complete
  ManyRanks joined_;
  uint64_t rounds_ = 0;  // announced so far
};

}  // namespace pc::engine
