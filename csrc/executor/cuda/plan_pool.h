// Device memory for plans, allocated with the communicator: allocating while a kernel waits for a peer may not return.
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

// A piece of a pool.  Goes back with its owner, and is used again once the last call that has used it has completed.
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

  // The number of the last call that is known to have completed; waits for all of them if told to.
  using Completed = std::function<uint64_t(bool waits)>;
  // Where there is no room, waits for the calls in flight, and then grows.
  PooledBytes place(size_t bytes, const Completed& completed);
  void upload(char* into, const void* from, size_t bytes) const;
  struct Use {
    size_t capacity, taken;  // taken: by plans that live, and by others whose calls have not been seen to complete
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
  const OwnStream stream_;  // made beforehand, as the memory is
  mutable std::mutex mutex_;
  std::vector<DeviceBytes> blocks_;
  size_t capacity_ = 0, taken_ = 0;
  std::map<char*, size_t> free_;
  std::mutex returned_mutex_;  // of its own: who gives a piece back must not wait for who waits for calls
  std::vector<Returned> returned_;
};

}  // namespace pc::cuda
