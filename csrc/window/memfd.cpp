// Anonymous shared memory that peers open through /proc/PID/fd: it has no name, so nothing can be left behind, and is
// not limited by the size of /dev/shm.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "window/kinds.h"

namespace pc {
namespace {

constexpr const char* kName = "pycollective";
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr int kSealExec = 0x20;  // F_SEAL_EXEC, which kernels add if vm.memfd_noexec is set

class Memfd final : public Segment {
 public:
  Memfd(int fd, size_t bytes) : fd_(fd) {
    bytes_ = bytes;
    data_ = map_shared(fd, bytes);
  }
  ~Memfd() override { munmap(data_, bytes_); }
  std::string token() const override {
    return "memfd:" + std::to_string(getpid()) + ":" + std::to_string(fd_.get()) + ":" + std::to_string(bytes_);
  }
  void seal() override { fd_.close(); }
  int descriptor() const override { return fd_.get(); }
  void reserve(size_t offset, size_t bytes) override {
    if (bytes == 0) return;
    int done = -1;
    do done = fallocate(fd_.get(), 0, static_cast<off_t>(offset), static_cast<off_t>(bytes));
    while (done != 0 && errno == EINTR);
    if (done != 0) fail("cannot reserve " + std::to_string(bytes) + " bytes of shared memory");
  }

 private:
  Descriptor fd_;
};

}  // namespace

std::shared_ptr<Segment> create_memfd(size_t bytes) {
  Descriptor fd(memfd_create(kName, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (fd.get() < 0) fail("memfd_create");
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0)
    fail("cannot size shared memory to " + std::to_string(bytes) + " bytes");
  // Seal the size, so that no peer can cause a bus error by shrinking the file.
  if (fchmod(fd.get(), 0600) != 0 || fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) fail("cannot seal shared memory");
  return std::make_shared<Memfd>(fd.release(), bytes);
}

std::shared_ptr<Segment> attach_memfd(const std::string& token, size_t bytes) {
  uint64_t pid = 0, number = 0, size = 0;
  parse_numbers(token, "memfd", {&pid, &number, &size});
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(number);
  const Descriptor found(open(path.c_str(), O_PATH | O_CLOEXEC));
  if (found.get() < 0) fail("cannot open a peer's shared memory (" + path + ")");
  if (size != bytes) refuse(token, "its size should be " + std::to_string(bytes));
  if (const std::string why = why_foreign(found.get(), bytes); !why.empty()) refuse(token, why);
  const std::string here = "/proc/self/fd/" + std::to_string(found.get());
  char target[64] = "";
  if (readlink(here.c_str(), target, sizeof target - 1) < 0) fail("readlink " + here);
  if (std::string(target) != std::string("/memfd:") + kName + " (deleted)") refuse(token, "it is a file");
  Descriptor fd(open(here.c_str(), O_RDWR | O_CLOEXEC));
  if (fd.get() < 0) fail("cannot open a peer's shared memory (" + path + ")");
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & ~kSealExec) != kSeals) refuse(token, "its seals differ from ours");
  return std::make_shared<Memfd>(fd.release(), bytes);
}

}  // namespace pc
