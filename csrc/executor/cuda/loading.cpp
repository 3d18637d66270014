#include "executor/cuda/loading.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "base/cuda/device.h"
#include "executor/cuda/kernels/kernels.h"
#include "executor/cuda/kernels/moves.h"

namespace pc::cuda {
namespace {

template <class F>
int32_t blocks_of(F* kernel, int threads) {
  load_kernel(kernel);
  int blocks = 0;
  check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, reinterpret_cast<const void*>(kernel), threads, 0),
        "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
  return blocks;
}

int32_t load_all(int device) {
  const OnDevice on(device);
  const int threads = std::min(kThreads, device_attribute(cudaDevAttrMaxThreadsPerBlock, device));
  int32_t blocks = kMostChannels;
  const auto load = [&](const Kernels& kernels) {
    if (kernels.schedule != nullptr) blocks = std::min(blocks, blocks_of(kernels.schedule, threads));
    if (kernels.low_latency != nullptr) blocks = std::min(blocks, blocks_of(kernels.low_latency, threads));
  };
  load(kernels_of_copies());
  for (int number = 0; number < static_cast<int>(Dtype::count); ++number) {
    const auto dtype = static_cast<Dtype>(number);
    for (const Operator op : {Operator::sum, Operator::prod})  // the sum has separate kernels
      for (const bool scaled : {false, true}) load(kernels_for(dtype, op, scaled));
    load(kernels_of_weighted_sums(dtype));
  }
  load_moves();
  return blocks;
}

}  // namespace

int32_t load_kernels(int device) {
  static std::mutex mutex;
  static std::map<int, int32_t> blocks;  // by device
  const std::lock_guard lock(mutex);
  const auto found = blocks.find(device);
  return found != blocks.end() ? found->second : blocks[device] = load_all(device);
}

}  // namespace pc::cuda
