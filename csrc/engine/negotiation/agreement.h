// The agreement where ranks share no memory: each rank receives all announcements in the same order and reaches the
// same conclusions.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/negotiation/carrier.h"
#include "executor/control.h"

namespace pc::engine {

// A set of any number of ranks.
struct ManyRanks {
  std::vector<bool> bits;
  bool has(int32_t rank) const { return bits[static_cast<size_t>(rank)]; }
  void add(int32_t rank) { bits[static_cast<size_t>(rank)] = true; }
};

// An operation that ranks have announced.
struct AnnouncedOperation {
  Round round;
  ManyRanks announced;
  std::unique_ptr<Details> details;
};

class Agreement {
 public:
  using Batch = std::vector<Member>;

  // `world_ranks`: the ranks' numbers in the world.
  explicit Agreement(std::vector<int32_t> world_ranks);

  // Throws InvalidArgument if the rank has announced the operation already.
  void announce(int32_t rank, const Announcement& item);
  // The rank's submission was refused: reported until it announces the operation.
  void refuse(Refusal refusal);
  // The complete operations, in batches.  A round of messages takes a cycle anyway: nothing waits for more to fuse
  // with.
  std::vector<Batch> cut(int64_t threshold);
  // Number of operations that wait for ranks.
  int32_t waiting() const { return static_cast<int32_t>(waiting_.size()); }
  // Those that have waited for `seconds`; `reporter`: only those that this rank reports, -1: all.
  std::vector<Stall> stalls(double seconds, int32_t reporter) const;
  int32_t size() const { return static_cast<int32_t>(world_ranks_.size()); }
  std::string number(int32_t rank) const { return rank_number(rank, world_ranks_[static_cast<size_t>(rank)]); }

 private:
  struct View;
  bool settle(AnnouncedOperation& operation);
  void drop_refusals(int32_t rank, std::string_view name);

  std::vector<int32_t> world_ranks_;
  std::unordered_map<std::string, AnnouncedOperation> waiting_;
  std::vector<AnnouncedOperation> ready_;  // in order of completion
  std::vector<Refusal> refusals_;
  ManyRanks joined_;
  uint64_t rounds_ = 0;  // announced so far
};

}  // namespace pc::engine
