// Checks that memory mapped from a peer really is the peer's: kernels write a pattern into it and look for one, with
// the loads and stores of the data path.
#pragma once

#include <cstdint>

namespace pc::cuda {

struct ProbeArguments {
  uint64_t* at;
  int64_t words;
  uint64_t seed;
  uint32_t* wrong;  // host memory: number of words that differ; null: write
};

// Both block until the device has completed.  Throw SystemFailure.
void probe_write(int device, uintptr_t address, int64_t words, uint64_t seed);
int64_t probe_read(int device, uintptr_t address, int64_t words, uint64_t seed);

}  // namespace pc::cuda
