// Internal to this folder: each kind's two entry points, and shared helpers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>

#include "window/segment.h"

namespace pc {

std::shared_ptr<Segment> create_memfd(size_t bytes);
std::shared_ptr<Segment> attach_memfd(const std::string& token, size_t bytes);
std::shared_ptr<Segment> create_posix_shm(size_t bytes);
std::shared_ptr<Segment> attach_posix_shm(const std::string& token, size_t bytes);
std::shared_ptr<Segment> create_local(size_t bytes);
std::shared_ptr<Segment> attach_local(const std::string& token, size_t bytes);

constexpr size_t kPage = 4096;
constexpr size_t whole_pages(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

char* map_shared(int fd, size_t bytes);
[[noreturn]] void fail(const std::string& what);                              // appends errno's message
[[noreturn]] void refuse(const std::string& token, const std::string& why);  // a token that does not name our memory

// A file descriptor, closed at the end of its scope.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  ~Descriptor() { close(); }
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }
  void close();

 private:
  int fd_;
};

// The numbers of "kind:first:second:...", decimal digits only.  Throws InvalidArgument.
void parse_numbers(const std::string& token, const char* kind, std::initializer_list<uint64_t*> numbers);

// Why a descriptor is not private memory of this user: a regular file on tmpfs, owned by this user, of mode 0600 and of
// exactly `bytes` bytes.  Empty if it is.  Accepts O_PATH descriptors, so that a FIFO or a device need not be opened to
// be refused.
std::string why_foreign(int fd, size_t bytes);

}  // namespace pc
