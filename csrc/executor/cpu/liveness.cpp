#include "executor/cpu/liveness.h"

#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "base/forks.h"
#include "base/status.h"

namespace pc {

uint64_t pid_namespace() {
  struct stat about{};
  return stat("/proc/self/ns/pid", &about) == 0 ? about.st_ino : 0;
}

// A pidfd, or none where the process was gone before it could be watched.
class Watch {
 public:
  explicit Watch(int descriptor) : descriptor_(descriptor) {}
  ~Watch() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  Watch(const Watch&) = delete;
  bool gone() const {
    pollfd query{descriptor_, POLLIN, 0};
    return descriptor_ < 0 || (poll(&query, 1, 0) == 1 && (query.revents & POLLIN) != 0);
  }

 private:
  int descriptor_;
};

namespace {

// Hundreds of communicators of the same ranks are no more descriptors than one.
struct Watches {
  std::mutex mutex;
  std::map<int32_t, std::weak_ptr<const Watch>> of;
};

// Null where the kernel, or a sandbox, does not let processes be watched.
std::shared_ptr<const Watch> watch(int32_t pid) {
  Watches& watches = of_this_process<Watches>();
  const std::lock_guard lock(watches.mutex);
  auto known = watches.of[pid].lock();
  if (known && !known->gone()) return known;  // else the number may be a new process's
  const int descriptor = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (descriptor < 0 && (errno == EMFILE || errno == ENFILE))
    throw SystemFailure("cannot watch process " + std::to_string(pid) + ": " + std::strerror(errno));
  if (descriptor < 0 && errno != ESRCH) return nullptr;
  known = std::make_shared<const Watch>(descriptor);
  watches.of[pid] = known;
  return known;
}

}  // namespace

Liveness::Liveness(const std::vector<int32_t>& pids) {
  for (const int32_t pid : pids) watches_.push_back(pid > 0 ? watch(pid) : nullptr);
}

bool Liveness::gone(int32_t rank) const {
  const auto& watch = watches_[static_cast<size_t>(rank)];
  return watch && watch->gone();
}

}  // namespace pc
