// Anonymous shared memory that peers open through /proc/PID/fd: no name, so nothing can be left behind,
// and not limited by the size of /dev/shm.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "window/kinds.h"

namespace pc {
namespace {

class Memfd final : public Segment {
 public:
  Memfd(int fd, size_t bytes) : fd_(fd) {
    bytes_ = bytes;
    try {
      data_ = map_shared(fd, bytes);
    } catch (...) {
      close(fd);
      throw;
    }
  }
  ~Memfd() override {
    munmap(data_, bytes_);
    if (fd_ >= 0) close(fd_);
  }
  std::string token() const override {
    return "memfd:" + std::to_string(getpid()) + ":" + std::to_string(fd_) + ":" + std::to_string(bytes_);
  }
  void seal() override {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }
  void reserve(size_t offset, size_t bytes) override {
    if (bytes == 0) return;
    if (fallocate(fd_, 0, static_cast<off_t>(offset), static_cast<off_t>(bytes)) != 0)
      fail("cannot reserve " + std::to_string(bytes) + " bytes of shared memory");
  }

 private:
  int fd_;
};

}  // namespace

std::shared_ptr<Segment> create_memfd(size_t bytes) {
  const int fd = memfd_create("pycollective", MFD_CLOEXEC);
  if (fd < 0) fail("memfd_create");
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    close(fd);
    fail("cannot size shared memory to " + std::to_string(bytes) + " bytes");
  }
  return std::make_shared<Memfd>(fd, bytes);
}

std::shared_ptr<Segment> attach_memfd(const std::string& token) {
  int pid = 0, number = 0;
  size_t bytes = 0;
  if (std::sscanf(token.c_str(), "memfd:%d:%d:%zu", &pid, &number, &bytes) != 3) {
    errno = EINVAL;
    fail("malformed token " + token);
  }
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(number);
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) fail("cannot open a peer's shared memory (" + path + ")");
  return std::make_shared<Memfd>(fd, bytes);
}

}  // namespace pc
