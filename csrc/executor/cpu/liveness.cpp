#include "executor/cpu/liveness.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace pc {

Liveness::Liveness(const std::vector<int32_t>& pids) {
  for (const int32_t pid : pids)
    descriptors_.push_back(pid > 0 ? static_cast<int>(syscall(SYS_pidfd_open, pid, 0)) : -1);
}

Liveness::~Liveness() {
  for (const int fd : descriptors_)
    if (fd >= 0) close(fd);
}

bool Liveness::gone(int32_t rank) const {
  pollfd query{descriptors_[static_cast<size_t>(rank)], POLLIN, 0};
  return query.fd >= 0 && poll(&query, 1, 0) == 1 && (query.revents & POLLIN) != 0;
}

}  // namespace pc
