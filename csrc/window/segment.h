// Shared memory, one file per kind.  A kind is added by its file and its line in segment.cpp.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace pc {

// A mapped piece of memory that all ranks of a communicator see; zeros at first.
class Segment {
 public:
  virtual ~Segment() = default;
  Segment(const Segment&) = delete;
  char* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  // What a peer passes to attach_segment: "kind:..." in printable characters.
  virtual std::string token() const = 0;
  // Every peer has attached (or failed to): drop whatever a newcomer would need.
  virtual void seal() {}
  // Claims the memory of [offset, offset + bytes) now.  Throws SystemFailure where there is not enough, so
  // that a full /dev/shm is an error here and not a bus error later.
  virtual void reserve(size_t offset, size_t bytes) = 0;

 protected:
  Segment() = default;
  char* data_ = nullptr;
  size_t bytes_ = 0;
};

// kind: "memfd", "posix_shm" or "local".  Throws SystemFailure.
std::shared_ptr<Segment> create_segment(const std::string& kind, size_t bytes);
// `bytes` is what the ranks have agreed on.  Whatever the token names, nothing is mapped but memory that a process of
// this user has made with create_segment, of exactly that size.  Throws InvalidArgument for a token that is malformed
// or names something else, SystemFailure where the memory cannot be opened.
std::shared_ptr<Segment> attach_segment(const std::string& token, size_t bytes);

}  // namespace pc
