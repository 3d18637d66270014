// The windows of a communicator that this rank has mapped.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>

#include "executor/control.h"

namespace pc {

// One window: the part of each rank of this host is `stride` bytes after the previous one.
struct WindowView {
  char* base;
  int64_t stride;
  int64_t bytes;  // of a rank's part
};

// Used by several threads.
class Windows {
 public:
  // Throws InvalidArgument.  `local`: this rank's index among those of this host.
  void add(int64_t id, WindowView view, int32_t local);
  void remove(int64_t id);
  bool any() const { return any_.load(std::memory_order_relaxed); }  // or there were: the same on all ranks
  // The position of an address range in a window of this rank, if it is in one.
  Location locate(const void* address, int64_t bytes) const;
  // The address of that position in the part of another rank of this host; null: this rank has no such window.
  char* address(int32_t local, Location at) const;

 private:
  static char* part(const WindowView& view, int32_t local) { return view.base + local * view.stride; }

  std::map<int64_t, WindowView> views_;  // by id, the same on all ranks
  std::map<const char*, int64_t> at_;    // the id, by the start of this rank's part
  std::atomic<bool> any_{false};
  mutable std::mutex mutex_;
};

}  // namespace pc
