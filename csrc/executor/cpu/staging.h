// The arrays of a call that are in device memory: staged tile by tile through pinned host memory, so that copies from
// the device, the schedule's steps and copies to the device overlap.  Tiles take turns in a few slots of that memory.
#pragma once

#include <string>
#include <vector>

#include "executor/cpu/hosts/remote.h"
#include "executor/device_copies.h"
#include "executor/plan.h"

namespace pc {

class Staging {
 public:
  Staging(const DeviceCopies& copies, const void* input, void* output)
      : copies_(copies), input_{static_cast<char*>(const_cast<void*>(input))}, output_{static_cast<char*>(output)} {}

  // Enqueues the copies of the first tiles, and finds out which chunks this rank reads and writes.
  void begin(const Plan& plan);
  bool begun() const { return plan_ != nullptr; }
  // Whether the steps of a tile can run: its input has been copied, and its output's slot is free.  Also enqueues the
  // copies that have become possible.
  bool ready(int64_t tile);
  // The schedule has begun this iteration: the output of the tiles that it no longer touches is copied to the device.
  void advance(int64_t iteration);
  // All steps have run: enqueues the remaining copies.
  void finish() { advance(plan_->tiles + depth_); }

  // Where an element of a chunk is staged: the one at `begin` + `skip` of it, in the tile that begins at `begin`.
  char* place(bool input, int32_t chunk, int64_t begin, int64_t skip) const;
  // A message to `peer`, the link's number `posted`, is sent from the slots of a tile.
  void hold(int64_t tile, const Remote& peer, uint64_t posted) { slot(tile).held.push_back({&peer, posted}); }
  // Why a copy has failed; empty: none has.
  const std::string& failure() const { return failure_; }

 private:
  static constexpr int64_t kAhead = 2;  // tiles that are copied before or after the steps of those in progress

  struct Held {
    const Remote* peer;
    uint64_t posted;
  };
  struct Slot {
    uint64_t fetched = 0, stored = 0;  // marks: after the copies of its tile from and to the device
    std::vector<Held> held;
  };
  struct Side {
    char* device;  // the array
    char* staged = nullptr;  // its part of the pinned memory
    std::vector<int32_t> chunks{};  // that this rank's steps use
    std::vector<int32_t> index{};  // of each chunk in `chunks`
    void use(int32_t chunk);
  };

  Slot& slot(int64_t tile) { return slots_[static_cast<size_t>(tile) % slots_.size()]; }
  int64_t staged_at(const Side& side, int32_t chunk, int64_t tile) const;
  void find_chunks();
  bool taken(Slot& slot);
  bool reached(CopyDirection direction, uint64_t mark);
  uint64_t copy(const Side& side, const std::vector<int64_t>& offsets, CopyDirection direction, int64_t tile);
  void fetch_ahead(int64_t iteration);
  bool fail();

  const DeviceCopies copies_;
  const Plan* plan_ = nullptr;
  Side input_, output_;
  std::vector<Slot> slots_;
  int64_t depth_ = 1, tile_bytes_ = 0;
  int64_t fetched_ = 0, stored_ = 0;  // tiles whose copies have been enqueued
  std::string failure_;
};

}  // namespace pc
