// A memory barrier on other processes' cores, for a frequent store that then needs none of its own (Linux membarrier(2)).
#pragma once

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace pc {

// This process takes part: the first call can take milliseconds.
inline void expect_barriers() { syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0); }

// A full barrier on every core that runs a process which takes part.  Some sandboxes refuse it: then it does nothing.
inline void barrier_on_all_cores() { syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0); }

}  // namespace pc
