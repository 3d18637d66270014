// Whether the processes of a communicator's other ranks still live.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace pc {

// The namespace of this process's process numbers; 0 where /proc does not tell.
uint64_t pid_namespace();

// A process is watched by a pidfd, which tells an exited process apart from a new one of the same number,
// and a zombie apart from a living one.
class Liveness {
 public:
  // 0 stands for "do not watch" (this process itself, or a rank that is a thread of it).
  // Throws SystemFailure if this process has no descriptors left.
  explicit Liveness(const std::vector<int32_t>& pids);
  bool gone(int32_t rank) const;

 private:
  std::vector<std::shared_ptr<const class Watch>> watches_;  // all that look at one process share one
};

}  // namespace pc
