// Whether the processes of a communicator's other ranks still live.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace pc {

// The namespace of this process's process numbers; 0 where /proc does not tell.
uint64_t pid_namespace();
// When this process began, in clock ticks since the machine did; 0 where /proc does not tell.
uint64_t own_start_time();

// Process numbers are used again: the start time tells apart those who have had one.
struct Process {
  int32_t pid = 0;       // 0: do not watch (this process itself, or a rank that is a thread of it)
  uint64_t started = 0;  // 0: unknown
};

// A process is watched by a pidfd, which tells an exited process apart from a new one of the same number,
// and a zombie apart from a living one. Where the kernel or a sandbox has no pidfd, /proc tells the same.
class Liveness {
 public:
  // Throws SystemFailure if this process has no descriptors left.
  explicit Liveness(const std::vector<Process>& processes);
  bool gone(int32_t rank) const;
  bool stopped(int32_t rank) const;  // by a signal or a debugger; false also where /proc does not tell

 private:
  std::vector<std::shared_ptr<const class Watch>> watches_;  // all that look at one process share one
};

}  // namespace pc
