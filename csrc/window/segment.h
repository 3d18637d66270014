// Shared memory, one file per kind.  To add a kind, add its file and its line in segment.cpp.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace pc {

// Memory mapped by all ranks of a communicator; initially zero.
class Segment {
 public:
  virtual ~Segment() = default;
  Segment(const Segment&) = delete;
  char* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  // What a peer passes to attach_segment: "kind:..." in printable characters.
  virtual std::string token() const = 0;
  // All peers have attached (or failed to): drop what further peers would need.
  virtual void seal() {}
  // Claims the memory of [offset, offset + bytes) now.  Throws SystemFailure if there is not enough, so that a full
  // /dev/shm is an error here rather than a bus error later.
  virtual void reserve(size_t offset, size_t bytes) = 0;
  virtual int descriptor() const { return -1; }  // of the file that is mapped; -1: none, or closed

 protected:
  Segment() = default;
  char* data_ = nullptr;
  size_t bytes_ = 0;
};

// kind: "memfd", "posix_shm" or "local".  Throws SystemFailure.
std::shared_ptr<Segment> create_segment(const std::string& kind, size_t bytes);
// `bytes`: agreed by the ranks.  Whatever the token names, only memory that a process of this user has created with
// create_segment, of exactly that size, is mapped.  Throws InvalidArgument for a token that is malformed or names
// something else, SystemFailure if the memory cannot be opened.
std::shared_ptr<Segment> attach_segment(const std::string& token, size_t bytes);

}  // namespace pc
