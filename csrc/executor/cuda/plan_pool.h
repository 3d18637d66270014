// Device memory for plans, allocated with the communicator: an allocation may block while a kernel waits for a peer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "executor/cuda/device_bytes.h"

namespace pc::cuda {

class PlanPool;

// A piece of a pool.  Returned with its owner, and reused when the last call that has used it has completed.
class PooledBytes {
 public:
  PooledBytes() = default;
  PooledBytes(std::shared_ptr<PlanPool> pool, char* data, size_t bytes)
      : pool_(std::move(pool)), data_(data), bytes_(bytes) {}
  PooledBytes(PooledBytes&& other) noexcept { *this = std::move(other); }
  PooledBytes& operator=(PooledBytes&& other) noexcept;
  ~PooledBytes();
  char* data() const { return data_; }
  void used_by(uint64_t call) { last_call_ = call; }

 private:
  std::shared_ptr<PlanPool> pool_;
  char* data_ = nullptr;
  size_t bytes_ = 0;
  uint64_t last_call_ = 0;
};

class PlanPool : public std::enable_shared_from_this<PlanPool> {
 public:
  PlanPool(int device, size_t bytes);

  // The number of the last call that is known to have completed; if `waits`, waits for all of them.
  using Completed = std::function<uint64_t(bool waits)>;
  // If there is no room, waits for the calls in flight, and then grows.
  PooledBytes place(size_t bytes, const Completed& completed);
  void upload(char* into, const void* from, size_t bytes) const;
  struct Use {
    size_t capacity, taken;  // taken: by live plans, and by others whose calls are not known to have completed
  };
  Use use() const;

 private:
  friend PooledBytes;
  struct Returned {
    char* data;
    size_t bytes;
    uint64_t last_call;
  };
  void give_back(char* data, size_t bytes, uint64_t last_call) noexcept;
  char* find(size_t bytes);
  void reclaim(const Completed& completed, bool waits);
  void add_free(char* data, size_t bytes);
  void grow(size_t bytes);

  const int device_;
  const OwnStream stream_;  // created in advance, like the memory
  mutable std::mutex mutex_;
  std::vector<DeviceBytes> blocks_;
  size_t capacity_ = 0, taken_ = 0;
  std::map<char*, size_t> free_;
  std::mutex returned_mutex_;  // separate: returning a piece must not wait for a thread that waits for calls
  std::vector<Returned> returned_;
};

}  // namespace pc::cuda
