#include "executor/cpu/liveness.h"

#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace pc {
namespace {

constexpr int kUnwatched = -1;
constexpr int kGone = -2;  // before it could be watched

}  // namespace

uint64_t pid_namespace() {
  struct stat about{};
  return stat("/proc/self/ns/pid", &about) == 0 ? about.st_ino : 0;
}

Liveness::Liveness(const std::vector<int32_t>& pids) {
  for (const int32_t pid : pids) {
    const int descriptor = pid > 0 ? static_cast<int>(syscall(SYS_pidfd_open, pid, 0)) : kUnwatched;
    descriptors_.push_back(descriptor >= 0 || pid <= 0 ? descriptor : errno == ESRCH ? kGone : kUnwatched);
  }
}

Liveness::~Liveness() {
  for (const int fd : descriptors_)
    if (fd >= 0) close(fd);
}

bool Liveness::gone(int32_t rank) const {
  pollfd query{descriptors_[static_cast<size_t>(rank)], POLLIN, 0};
  if (query.fd == kGone) return true;
  return query.fd >= 0 && poll(&query, 1, 0) == 1 && (query.revents & POLLIN) != 0;
}

}  // namespace pc
