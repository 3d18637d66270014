#include "executor/copy.h"

#include <cstring>
#include <utility>

#include "base/checked.h"
#include "dtype/kernels.h"

namespace pc {

void PlainCopy::run() { copy_bytes(into_, from_, bytes_); }

PackedCopy::PackedCopy(const char* from, std::vector<int64_t> extents, std::vector<int64_t> strides, int64_t element)
    : from_(from), extents_(std::move(extents)), strides_(std::move(strides)), element_(element) {
  const int64_t count = checked_count(extents_, element, "x");
  into_ = std::make_unique_for_overwrite<char[]>(static_cast<size_t>(count * element));
  if (count == 0) extents_ = {0}, strides_ = {0};
  if (extents_.empty()) extents_ = {1}, strides_ = {element};
}

void PackedCopy::run() { pack(from_, 0, into_.get()); }

// Packs the elements under one index of the axes before `axis`; returns the end of the written data.
char* PackedCopy::pack(const char* from, size_t axis, char* into) const {
  const int64_t extent = extents_[axis], stride = strides_[axis];
  if (axis + 1 < extents_.size()) {
    for (int64_t i = 0; i < extent; ++i) into = pack(from + i * stride, axis + 1, into);
    return into;
  }
  if (stride == element_) {
    copy_bytes(into, from, static_cast<size_t>(extent * element_));
    return into + extent * element_;
  }
  for (int64_t i = 0; i < extent; ++i, into += element_) {
    switch (element_) {  // copies of constant size are single moves
      case 1: *into = from[i * stride]; break;
      case 2: std::memcpy(into, from + i * stride, 2); break;
      case 4: std::memcpy(into, from + i * stride, 4); break;
      default: std::memcpy(into, from + i * stride, static_cast<size_t>(element_)); break;
    }
  }
  return into;
}

}  // namespace pc
