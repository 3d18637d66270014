#include "executor/cuda/plan_pool.h"

#include <algorithm>
#include <iterator>

namespace pc::cuda {
namespace {

constexpr size_t kUnit = 256;  // bytes: the size and alignment unit of pieces

size_t rounded(size_t bytes) { return (std::max<size_t>(bytes, 1) + kUnit - 1) / kUnit * kUnit; }

}  // namespace

PooledBytes& PooledBytes::operator=(PooledBytes&& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(last_call_, other.last_call_);
  return *this;
}

PooledBytes::~PooledBytes() {
  if (pool_ != nullptr) pool_->give_back(data_, bytes_, last_call_);
}

PlanPool::PlanPool(int device, size_t bytes) : device_(device) { grow(bytes); }

PooledBytes PlanPool::place(size_t bytes, const Completed& completed) {
  const std::lock_guard lock(mutex_);
  const size_t whole = rounded(bytes);
  char* found = find(whole);
  for (const bool waits : {false, true}) {
    if (found != nullptr) break;
    reclaim(completed, waits);
    found = find(whole);
  }
  if (found == nullptr) {
    grow(std::max(whole, capacity_));  // no call of this communicator is in flight: reclaim has waited for them
    found = find(whole);
  }
  taken_ += whole;
  return {shared_from_this(), found, whole};
}

void PlanPool::upload(char* into, const void* from, size_t bytes) const {
  const OnDevice on(device_);
  stream_.upload(into, from, bytes);
}

PlanPool::Use PlanPool::use() const {
  const std::lock_guard lock(mutex_);
  return {capacity_, taken_};
}

void PlanPool::give_back(char* data, size_t bytes, uint64_t last_call) noexcept {
  const std::lock_guard lock(returned_mutex_);
  returned_.push_back({data, bytes, last_call});
}

char* PlanPool::find(size_t bytes) {
  const auto found = std::find_if(free_.begin(), free_.end(), [&](const auto& piece) { return piece.second >= bytes; });
  if (found == free_.end()) return nullptr;
  const auto [data, size] = *found;
  free_.erase(found);
  if (size > bytes) free_[data + bytes] = size - bytes;
  return data;
}

void PlanPool::reclaim(const Completed& completed, bool waits) {
  std::vector<Returned> returned;
  {
    const std::lock_guard lock(returned_mutex_);
    std::swap(returned, returned_);
  }
  const uint64_t last = completed(waits);
  for (const Returned& piece : returned) {
    if (piece.last_call > last) {
      give_back(piece.data, piece.bytes, piece.last_call);
      continue;
    }
    taken_ -= piece.bytes;
    add_free(piece.data, piece.bytes);
  }
}

// Merges adjacent pieces.
void PlanPool::add_free(char* data, size_t bytes) {
  auto next = free_.upper_bound(data);
  if (next != free_.end() && data + bytes == next->first) {
    bytes += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == data) {
      before->second += bytes;
      return;
    }
  }
  free_[data] = bytes;
}

void PlanPool::grow(size_t bytes) {
  blocks_.emplace_back(device_, rounded(bytes));
  capacity_ += rounded(bytes);
  add_free(blocks_.back().data(), rounded(bytes));
}

}  // namespace pc::cuda
