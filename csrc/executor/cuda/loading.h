// Loading kernels before they are needed.
//
// CUDA loads a kernel when it is first launched, and may wait for the device to become idle for that.  While a kernel
// here waits for a peer, which waits for this launch, that is never.
#pragma once

#include <cstdint>

namespace pc::cuda {

// Loads all kernels on the device.  Blocks that a multiprocessor can hold of any one of the executor's.
int32_t load_kernels(int device);

}  // namespace pc::cuda
