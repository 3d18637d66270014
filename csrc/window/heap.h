// Memory of this process that other processes of the host can map: collectives read arrays in it where they are.
//
// One memfd, as large as the machine's memory, of which only what is allocated takes memory.  A child of a fork keeps a
// private copy of what its parent has stored here; it neither allocates from its parent's heap nor frees into it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "window/segment.h"

namespace pc {

// Used by several threads.
class Heap {
 public:
  static constexpr size_t kLeast = 64 << 10;  // bytes of an array that is worth a place here

  static Heap* existing() { return own_.load(std::memory_order_acquire); }  // of this process; null: none
  static Heap& of_process();  // created at the first call.  Throws SystemFailure
  static bool owned(const void* address);  // in this heap, or in that of a parent process
  // Frees what allocate() has returned in this process; does nothing to memory of a parent's heap.
  static void free(void* address);
  static size_t room(const void* address);  // bytes of what was allocated there, by this process or by a parent

  explicit Heap(size_t bytes);
  Heap(const Heap&) = delete;

  // What is at the address is never used for another array: a peer that was stopped in a call that failed may still
  // write to it.
  static void retire(const void* address);

  // Page-aligned memory; null: there is no room.  `zeroed`: whether all of it is known to be zero.
  void* allocate(size_t bytes, bool& zeroed);
  // Moves memory here that keeps its address.  `provide` returns this: of a mapping of whole pages, which nothing else
  // replaces or unmaps before abandon().  False: there is no room, and `provide` was not called.
  bool adopt(size_t bytes, const std::function<void*()>& provide);
  static void abandon(void* address);  // frees what adopt() has moved; nothing uses it any more
  bool contains(const void* address, size_t bytes) const {
    const char* const at = static_cast<const char*>(address);
    return at >= segment_->data() && at + bytes <= segment_->data() + segment_->bytes();
  }
  bool holds(const void* address) const { return contains(address, 1); }
  int64_t offset(const void* address) const { return static_cast<const char*>(address) - segment_->data(); }
  // Of memory that allocate() has returned or adopt() has moved; -1: it is neither.
  int64_t position(const void* address, size_t bytes) const {
    if (contains(address, bytes)) return offset(address);
    return any_adopted_.load(std::memory_order_acquire) ? adopted_position(address, bytes) : -1;
  }
  char* data() const { return segment_->data(); }
  // For attach_heap: what names this heap, and proves that what is found under the name is it.
  std::string token() const;
  size_t used() const;  // bytes allocated
  size_t retained() const;  // bytes of memory taken, with what is kept for later arrays

 private:
  struct Free {
    size_t bytes;
    bool backed;  // by memory; otherwise it is zero, and memory must be reserved
  };

  struct Adopted { size_t bytes, offset; };

  static void before_fork();
  static void after_fork_in_parent();
  static void after_fork_in_child();
  void make_private();
  void forget_adopted(const char* address, size_t bytes);
  void map(void* address, size_t bytes, size_t offset, int sharing) const;
  int64_t adopted_position(const void* address, size_t bytes) const;
  void release(size_t offset);
  void add_free(size_t offset, Free block);
  void trim();
  void remove_free(std::map<size_t, Free>::iterator block);

  static inline std::atomic<Heap*> own_{nullptr};

  std::shared_ptr<Segment> segment_;
  const uint64_t file_;  // its number: the program may close its descriptor, and open another file under the same one
  Heap* older_ = nullptr;  // of the parent process
  mutable std::mutex mutex_;
  std::map<size_t, Free> free_;  // by offset
  std::set<std::pair<size_t, size_t>> by_size_;  // the same: (bytes, offset)
  std::map<size_t, size_t> used_;  // bytes, by offset
  std::set<size_t> retired_;  // offsets
  std::map<const char*, Adopted> adopted_;  // by address
  std::atomic<bool> any_adopted_{false};
  size_t used_bytes_ = 0, kept_bytes_ = 0;  // of `used_`, of `free_` if backed
  size_t end_;  // from here on nothing was ever allocated
};

// A peer's heap, mapped once for all communicators.  Throws InvalidArgument if the token is malformed or names something else, SystemFailure if the memory
// cannot be opened.
std::shared_ptr<Segment> attach_heap(const std::string& token);

}  // namespace pc
