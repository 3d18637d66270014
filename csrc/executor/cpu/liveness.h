// Whether the processes of a communicator's other ranks are alive.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace pc {

// The PID namespace of this process; 0 if /proc does not show it.
uint64_t pid_namespace();
// The start time of this process, in clock ticks since boot; 0 if /proc does not show it.
uint64_t own_start_time();

// Process ids are reused: the start time distinguishes processes with the same id.
struct Process {
  int32_t pid = 0;       // 0: do not watch (this process itself, or a rank that is a thread of it)
  uint64_t started = 0;  // 0: unknown
};

// Processes are watched by pidfds, which distinguish an exited process from a new one with the same id, and a zombie
// from a running process. If the kernel or a sandbox has no pidfd, /proc is used.
class Liveness {
 public:
  // Throws SystemFailure if this process is out of descriptors.
  explicit Liveness(const std::vector<Process>& processes);
  bool gone(int32_t rank) const;
  bool stopped(int32_t rank) const;  // by a signal or a debugger; false also if /proc does not show it

 private:
  std::vector<std::shared_ptr<const class Watch>> watches_;  // shared by all that watch the same process
};

}  // namespace pc
