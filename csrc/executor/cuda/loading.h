// Loading kernels before they are needed.
//
// CUDA loads a kernel when it is first launched, and may wait for the device to become idle first.  If a kernel here
// waits for a peer that waits for this launch, that never happens.
#pragma once

#include <cstdint>

namespace pc::cuda {

// Loads all kernels on the device.  Returns how many blocks of any executor kernel fit on a multiprocessor.
int32_t load_kernels(int device);

}  // namespace pc::cuda
