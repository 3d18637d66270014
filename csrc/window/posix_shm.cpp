// Named POSIX shared memory, for systems where memfds are not allowed or a peer's /proc entries cannot be opened.
// The name exists only between creation and seal().
//
// Any user may create names in /dev/shm, so a name proves nothing.  Our files have, beyond the memory itself, a last
// page that begins with a magic number, and are private to this user.  The creator holds a shared lock on the file
// until seal() or its end, in whatever PID namespace.
#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <random>

#include "base/status.h"
#include "window/kinds.h"

namespace pc {
namespace {

constexpr const char* kFolder = "/dev/shm/";
constexpr const char* kPrefix = "pycollective-";
constexpr std::array<uint64_t, 2> kMagic{0x9d1c6f0be2754a83, 0x51b8e7a4c60f3d29};

// "pycollective-PID-" and 32 hexadecimal digits.
bool well_formed(const std::string& name) {
  if (!name.starts_with(kPrefix)) return false;
  const size_t dash = name.find_first_not_of("0123456789", std::strlen(kPrefix));
  return dash != std::string::npos && dash > std::strlen(kPrefix) && name[dash] == '-' && name.size() == dash + 33 &&
         name.find_first_not_of("0123456789abcdef", dash + 1) == std::string::npos;
}

std::string new_name() {
  std::random_device random;
  std::string name = kPrefix + std::to_string(getpid()) + "-";
  for (int i = 0; i < 32; ++i) name += "0123456789abcdef"[random() % 16];
  return name;
}

// Opens one of our files without touching any other; -1 and a reason otherwise.
int open_ours(const std::string& name, int mode, size_t bytes, std::string& why) {
  const std::string path = kFolder + name;
  const Descriptor found(open(path.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
  if (found.get() < 0) fail("cannot open shared memory (" + path + ")");
  why = why_foreign(found.get(), whole_pages(bytes) + kPage);
  if (!why.empty()) return -1;
  Descriptor fd(open(path.c_str(), mode | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (fd.get() < 0) fail("cannot open shared memory (" + path + ")");
  struct stat before{}, now{};
  std::array<uint64_t, 2> magic{};
  if (fstat(found.get(), &before) != 0 || fstat(fd.get(), &now) != 0) fail("fstat");
  if (before.st_ino != now.st_ino || before.st_dev != now.st_dev) why = "it is being replaced";
  else if (pread(fd.get(), magic.data(), sizeof magic, static_cast<off_t>(whole_pages(bytes))) != sizeof magic ||
           magic != kMagic)
    why = "it lacks our magic number";
  return why.empty() ? fd.release() : -1;
}

class PosixShm final : public Segment {
 public:
  PosixShm(int fd, std::string name, size_t bytes, bool owner) : fd_(fd), name_(std::move(name)), owner_(owner) {
    bytes_ = bytes;
    try {
      data_ = map_shared(fd, bytes);
    } catch (...) {
      seal();
      throw;
    }
  }
  ~PosixShm() override {
    munmap(data_, bytes_);
    seal();
  }
  std::string token() const override { return "posix_shm:" + name_ + ":" + std::to_string(bytes_); }
  void seal() override {
    if (fd_.get() < 0) return;
    if (owner_) unlink((kFolder + name_).c_str());  // while the lock is held, so that no other process sweeps it
    fd_.close();
  }
  void reserve(size_t offset, size_t bytes) override {
    if (bytes == 0) return;
    errno = posix_fallocate(fd_.get(), static_cast<off_t>(offset), static_cast<off_t>(bytes));
    if (errno != 0)
      fail("/dev/shm has no room for " + std::to_string(bytes) +
           " bytes (see `df -h /dev/shm`; in a container "
           "give it more with --shm-size)");
  }

 private:
  Descriptor fd_;
  std::string name_;
  bool owner_;
};

// Removes our files whose creator was killed before seal(): their lock is free.
void sweep_abandoned() {
  DIR* folder = opendir(kFolder);
  if (folder == nullptr) return;
  while (const dirent* entry = readdir(folder)) {
    const std::string name = entry->d_name;
    struct stat file{};
    if (!well_formed(name) || fstatat(dirfd(folder), name.c_str(), &file, AT_SYMLINK_NOFOLLOW) != 0) continue;
    if (!S_ISREG(file.st_mode) || file.st_uid != geteuid() || file.st_size < static_cast<off_t>(kPage)) continue;
    try {
      std::string why;
      const Descriptor fd(open_ours(name, O_RDONLY, static_cast<size_t>(file.st_size) - kPage, why));
      if (why.empty() && flock(fd.get(), LOCK_EX | LOCK_NB) == 0) unlinkat(dirfd(folder), name.c_str(), 0);
    } catch (const SystemFailure&) {  // removed meanwhile
    }
  }
  closedir(folder);
}

}  // namespace

std::shared_ptr<Segment> create_posix_shm(size_t bytes) {
  sweep_abandoned();
  // The file is named when it is complete and locked: a creator that is killed before leaves nothing.
  Descriptor fd(open(kFolder, O_RDWR | O_TMPFILE | O_CLOEXEC, 0600));
  if (fd.get() < 0) fail("cannot create a file in /dev/shm");
  const off_t end = static_cast<off_t>(whole_pages(bytes));
  if (fchmod(fd.get(), 0600) != 0 || flock(fd.get(), LOCK_SH) != 0 ||
      ftruncate(fd.get(), end + static_cast<off_t>(kPage)) != 0 ||
      pwrite(fd.get(), kMagic.data(), sizeof kMagic, end) != sizeof kMagic)
    fail("cannot size shared memory in /dev/shm to " + std::to_string(bytes) + " bytes");
  const std::string name = new_name(), here = "/proc/self/fd/" + std::to_string(fd.get());
  if (linkat(AT_FDCWD, here.c_str(), AT_FDCWD, (kFolder + name).c_str(), AT_SYMLINK_FOLLOW) != 0)
    fail("cannot name shared memory in /dev/shm");
  return std::make_shared<PosixShm>(fd.release(), name, bytes, true);
}

std::shared_ptr<Segment> attach_posix_shm(const std::string& token, size_t bytes) {
  const size_t first = token.find(':'), last = token.rfind(':');
  const std::string name = first < last ? token.substr(first + 1, last - first - 1) : "";
  uint64_t size = 0;
  if (!well_formed(name)) throw InvalidArgument("malformed token " + token);
  parse_numbers(token, ("posix_shm:" + name).c_str(), {&size});
  if (size != bytes) refuse(token, "its size should be " + std::to_string(bytes));
  std::string why;
  const int fd = open_ours(name, O_RDWR, bytes, why);
  if (fd < 0) refuse(token, why);
  return std::make_shared<PosixShm>(fd, name, bytes, false);
}

}  // namespace pc
