// Whether memory that is said to be mapped really is the peer's: kernels write a pattern into it and look for one, with
// the loads and stores of the data path.
#pragma once

#include <cstdint>

namespace pc::cuda {

struct ProbeArguments {
  uint64_t* at;
  int64_t words;
  uint64_t seed;
  uint32_t* wrong;  // host memory: words that are not as written; null: write
};

// Both return when the device has completed.  Throw CudaError.
void probe_write(int device, uintptr_t address, int64_t words, uint64_t seed);
int64_t probe_read(int device, uintptr_t address, int64_t words, uint64_t seed);

}  // namespace pc::cuda
