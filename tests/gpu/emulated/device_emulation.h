// The hardware features that device code uses, on CPU threads: the threads of a block are threads of the process, flags
// are atomics.  The thread sanitizer understands all of it.  Included only by device.h.
#pragma once

#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <typeindex>
#include <unordered_map>

#include "executor/cuda/kernels/arguments.h"

#define __global__
#define __launch_bounds__(...)
#define __grid_constant__

namespace pc_emulated {

// The threads of one block: their barrier and their shared memory.
class Block {
 public:
  explicit Block(unsigned threads) : barrier_(static_cast<std::ptrdiff_t>(threads)) {}

  void meet() { barrier_.arrive_and_wait(); }

  // Three flags used in turn: a thread that reads one late cannot race with the one that clears it.
  bool all(bool ok, unsigned& turn) {
    std::atomic<bool>& now = failed_[turn % 3];
    failed_[(turn + 1) % 3].store(false, std::memory_order_relaxed);
    turn += 1;
    if (!ok) now.store(true, std::memory_order_relaxed);
    barrier_.arrive_and_wait();
    return !now.load(std::memory_order_relaxed);
  }

  template <class T>
  T& shared() {
    const std::lock_guard lock(mutex_);
    auto& found = storage_[std::type_index(typeid(T))];
    if (!found) found = std::shared_ptr<void>(new T);
    return *static_cast<T*>(found.get());
  }

 private:
  std::barrier<> barrier_;
  std::atomic<bool> failed_[3] = {};
  std::mutex mutex_;
  std::unordered_map<std::type_index, std::shared_ptr<void>> storage_;
};

// Set by the code that starts the threads.
inline thread_local unsigned thread_index, block_index, block_dim, grid_dim;
inline thread_local unsigned turn;
inline thread_local Block* block;

}  // namespace pc_emulated

namespace pc::cuda {

inline unsigned thread_index() { return pc_emulated::thread_index; }
inline unsigned thread_count() { return pc_emulated::block_dim; }
inline unsigned block_index() { return pc_emulated::block_index; }

template <class T>
T& shared() {
  return pc_emulated::block->shared<T>();
}

inline void barrier() { pc_emulated::block->meet(); }
inline bool barrier_and(bool ok) { return pc_emulated::block->all(ok, pc_emulated::turn); }

#if defined(PC_TEST_RELAXED_FLAG)
constexpr auto kFlagOrder = std::memory_order_relaxed;
#else
constexpr auto kFlagOrder = std::memory_order_acquire;
#endif

inline uint64_t load_flag(const uint64_t* at, bool /*gpu_scope*/) {
  return std::atomic_ref<uint64_t>(*const_cast<uint64_t*>(at)).load(kFlagOrder);
}
inline void store_flag(uint64_t* at, uint64_t value, bool /*gpu_scope*/) {
  std::atomic_ref<uint64_t>(*at).store(value, std::memory_order_release);
}
inline uint32_t load_relaxed(const uint32_t* at) {
  return std::atomic_ref<uint32_t>(*const_cast<uint32_t*>(at)).load(std::memory_order_relaxed);
}
inline bool claim(uint32_t* at) {
  uint32_t untouched = 0;
  return std::atomic_ref<uint32_t>(*at).compare_exchange_strong(untouched, 1u);
}

// The halves of a packet are stored separately and in either order, as on a GPU, sometimes with a pause in between.
inline void store_packet(void* at, Vector v) {
  thread_local unsigned count = 0;
  auto* words = static_cast<uint64_t*>(at);
  const uint64_t halves[] = {static_cast<uint64_t>(v.word[1]) << 32 | v.word[0],
                             static_cast<uint64_t>(v.word[3]) << 32 | v.word[2]};
  const unsigned first = ++count & 1u;
  std::atomic_ref<uint64_t>(words[first]).store(halves[first], std::memory_order_relaxed);
  if (count % 32 < 2) std::this_thread::yield();
  std::atomic_ref<uint64_t>(words[1 - first]).store(halves[1 - first], std::memory_order_relaxed);
}
inline Vector load_packet(const void* at) {
  auto* words = static_cast<uint64_t*>(const_cast<void*>(at));
  const uint64_t low = std::atomic_ref<uint64_t>(words[0]).load(std::memory_order_relaxed);
  const uint64_t high = std::atomic_ref<uint64_t>(words[1]).load(std::memory_order_relaxed);
  return {{static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32), static_cast<uint32_t>(high),
           static_cast<uint32_t>(high >> 32)}};
}

inline uint64_t clock_ns() {
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}
inline void pause() { std::this_thread::yield(); }

}  // namespace pc::cuda
