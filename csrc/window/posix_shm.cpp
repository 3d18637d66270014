// Named POSIX shared memory, for where a peer's /proc entries cannot be opened (separate PID namespaces).
// The name exists only between creation and seal().
#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <random>

#include "base/status.h"
#include "window/kinds.h"

namespace pc {
namespace {

constexpr const char* kPrefix = "pycollective-";

// A maker takes its lock right after it has made the name; leave it the time.
bool old_enough(int fd) {
  struct stat status{};
  return fstat(fd, &status) == 0 && std::time(nullptr) - status.st_mtime > 2;
}

class PosixShm final : public Segment {
 public:
  PosixShm(int fd, std::string name, size_t bytes, bool owner) : fd_(fd), name_(std::move(name)), owner_(owner) {
    bytes_ = bytes;
    try {
      data_ = map_shared(fd, bytes);
    } catch (...) {
      close(fd);
      if (owner) shm_unlink(name_.c_str());
      throw;
    }
  }
  ~PosixShm() override {
    munmap(data_, bytes_);
    seal();
  }
  std::string token() const override { return "posix_shm:" + name_ + ":" + std::to_string(bytes_); }
  void seal() override {
    if (fd_ < 0) return;
    close(fd_);
    fd_ = -1;
    if (owner_) shm_unlink(name_.c_str());
  }
  void reserve(size_t offset, size_t bytes) override {
    if (bytes == 0) return;
    errno = posix_fallocate(fd_, static_cast<off_t>(offset), static_cast<off_t>(bytes));
    if (errno != 0)
      fail("/dev/shm has no room for " + std::to_string(bytes) +
           " bytes (see `df -h /dev/shm`; in a container "
           "give it more with --shm-size)");
  }

 private:
  int fd_;
  std::string name_;
  bool owner_;
};

// Names whose maker was killed before seal(): nobody holds the lock that it took.
void sweep_abandoned() {
  DIR* folder = opendir("/dev/shm");
  if (folder == nullptr) return;
  while (const dirent* entry = readdir(folder)) {
    if (std::strncmp(entry->d_name, kPrefix, std::strlen(kPrefix)) != 0) continue;
    const int fd = shm_open(entry->d_name, O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0) continue;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0 && old_enough(fd)) shm_unlink(entry->d_name);
    close(fd);
  }
  closedir(folder);
}

}  // namespace

std::shared_ptr<Segment> create_posix_shm(size_t bytes) {
  sweep_abandoned();
  std::random_device random;
  const std::string name = std::string("/") + kPrefix + std::to_string(getpid()) + "-" + std::to_string(random());
  const int fd = shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) fail("shm_open");
  flock(fd, LOCK_SH);  // until seal() or death
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    close(fd);
    shm_unlink(name.c_str());
    fail("cannot size " + name);
  }
  return std::make_shared<PosixShm>(fd, name, bytes, true);
}

std::shared_ptr<Segment> attach_posix_shm(const std::string& token) {
  const size_t first = token.find(':'), last = token.rfind(':');
  if (first == last) throw InvalidArgument("malformed token " + token);
  const std::string name = token.substr(first + 1, last - first - 1);
  const int fd = shm_open(name.c_str(), O_RDWR | O_CLOEXEC, 0600);
  if (fd < 0) fail("cannot open a peer's shared memory (" + name + ")");
  return std::make_shared<PosixShm>(fd, name, std::stoull(token.substr(last + 1)), false);
}

}  // namespace pc
