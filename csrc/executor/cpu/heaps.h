// The heaps of this host's ranks, as one rank of a communicator sees them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "executor/control.h"
#include "executor/cpu/membership.h"
#include "window/segment.h"

namespace pc {

// A rank names its heap in its block when it first uses an array there; peers map it, one after another, when they next
// use one of their own.  Until all have, its arrays are staged like any others.  Used by several threads.
class Heaps {
 public:
  Heaps(const Control& control, const Membership& members) : control_(control), members_(members) {}
  // The position of an address range in this rank's heap; none, unless all peers have mapped it.
  Location locate(const void* address, int64_t bytes);
  // Maps the heaps that peers have named since.
  void meet();
  // The address of a position in the heap of another rank of this host; null: it has none that this rank has mapped.
  char* address(int32_t local, int64_t offset) const;
  void release();  // what is mapped: arrays of ranks that have ended are then freed
  std::string problem() const;  // why a peer's heap could not be mapped; empty: no such problem

 private:
  void map(int32_t peer);
  bool is_mapped_by_all() const;

  const Control& control_;
  const Membership& members_;
  mutable std::mutex mutex_;
  bool named_ = false;               // in this rank's block
  std::atomic<bool> ready_{false};   // all peers have mapped this rank's
  std::vector<std::shared_ptr<Segment>> mapped_;  // by index among the ranks of this host
  std::vector<char*> at_;            // the same: where; null: not mapped
  std::vector<bool> tried_;
  std::string problem_;
};

}  // namespace pc
