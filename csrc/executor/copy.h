// Copies that a call makes when it runs: earlier calls may use both arrays until then.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace pc {

class Copy {
 public:
  virtual ~Copy() = default;
  virtual void run() = 0;
};

// Copies contiguous bytes that do not overlap.
class PlainCopy final : public Copy {
 public:
  PlainCopy(void* into, const void* from, size_t bytes) : into_(into), from_(from), bytes_(bytes) {}
  void run() override;

 private:
  void* into_;
  const void* from_;
  size_t bytes_;
};

// Packs an array of arbitrary strides, in C order, into memory that it owns.
class PackedCopy final : public Copy {
 public:
  // `strides`: bytes, one for each extent.  `element`: bytes.  Throws std::bad_alloc.
  PackedCopy(const char* from, std::vector<int64_t> extents, std::vector<int64_t> strides, int64_t element);
  char* data() const { return into_.get(); }
  void run() override;

 private:
  char* pack(const char* from, size_t axis, char* into) const;

  const char* from_;
  std::vector<int64_t> extents_, strides_;
  int64_t element_;
  std::unique_ptr<char[]> into_;
};

}  // namespace pc
