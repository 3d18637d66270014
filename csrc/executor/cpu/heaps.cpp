#include "executor/cpu/heaps.h"

#include <algorithm>
#include <cstring>

#include "base/status.h"
#include "window/heap.h"

namespace pc {

Location Heaps::locate(const void* address, int64_t bytes) {
  const Heap* const own = Heap::existing();
  const int64_t offset = own == nullptr ? -1 : own->position(address, static_cast<size_t>(bytes));
  if (offset < 0) return {};
  if (!ready_.load(std::memory_order_acquire)) {
    meet();
    if (!is_mapped_by_all()) return {};
    ready_.store(true, std::memory_order_release);
  }
  return {Location::kHeap, offset};
}

void Heaps::meet() {
  const std::lock_guard lock(mutex_);
  const size_t count = members_.here.size();
  if (at_.empty()) {
    mapped_.resize(count);
    at_.resize(count);
    tried_.resize(count);
  }
  RankBlock& mine = control_.block(members_.rank);
  if (const Heap* const own = Heap::existing(); own != nullptr && !named_) {
    const std::string token = own->token();
    if (token.size() >= sizeof mine.heap_token) return;
    std::strcpy(mine.heap_token, token.c_str());
    mine.heap.store(1, std::memory_order_release);
    named_ = true;
  }
  for (const int32_t peer : members_.here)
    if (peer != members_.rank && control_.block(peer).heap.load(std::memory_order_acquire) != 0) map(peer);
}

void Heaps::map(int32_t peer) {
  const auto local = static_cast<size_t>(members_.local[static_cast<size_t>(peer)]);
  if (tried_[local]) return;
  tried_[local] = true;
  RankBlock& theirs = control_.block(peer);
  const std::string token(theirs.heap_token, strnlen(theirs.heap_token, sizeof theirs.heap_token));
  if (const Heap* const own = Heap::existing(); own != nullptr && own->token() == token) {
    at_[local] = own->data();  // the ranks are threads of this process
  } else {
    try {
      mapped_[local] = attach_heap(token);
    } catch (const std::exception& error) {
      if (problem_.empty()) problem_ = "the arrays of " + members_.label(peer) + ": " + error.what();
      return;
    }
    at_[local] = mapped_[local]->data();
  }
  theirs.heap_readers.fetch_add(1, std::memory_order_release);
}

bool Heaps::is_mapped_by_all() const {
  return control_.block(members_.rank).heap_readers.load(std::memory_order_acquire) + 1 == members_.here.size();
}

char* Heaps::address(int32_t local, int64_t offset) const {
  const std::lock_guard lock(mutex_);
  const auto index = static_cast<size_t>(local);
  if (index >= at_.size() || at_[index] == nullptr || offset < 0) return nullptr;
  const bool fits = mapped_[index] == nullptr || static_cast<size_t>(offset) <= mapped_[index]->bytes();
  return fits ? at_[index] + offset : nullptr;
}

void Heaps::release() {
  const std::lock_guard lock(mutex_);
  std::fill(at_.begin(), at_.end(), nullptr);
  std::fill(mapped_.begin(), mapped_.end(), nullptr);
}

std::string Heaps::problem() const {
  const std::lock_guard lock(mutex_);
  return problem_;
}

}  // namespace pc
