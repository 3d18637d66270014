#include <algorithm>
#include <cstring>

#include "base/cuda/device.h"
#include "executor/cuda/kernels/device.h"
#include "executor/cuda/kernels/probe.h"

namespace pc::cuda {
namespace {

PC_FN uint64_t pattern(uint64_t seed, int64_t word) {
  return (seed + static_cast<uint64_t>(word)) * 0x9E3779B97F4A7C15ull;
}

__global__ void probe(const __grid_constant__ ProbeArguments a) {
  for (int64_t i = thread_index(); i < a.words; i += thread_count()) {
    if (a.wrong == nullptr) store_flag(a.at + i, pattern(a.seed, i), false);
    else if (load_flag(a.at + i, false) != pattern(a.seed, i)) a.wrong[i] = 1;
  }
}

void run(int device, const ProbeArguments& arguments) {
  const OnDevice on(device);
  const OwnStream stream;
  ProbeArguments a = arguments;
  void* parameters[] = {&a};
  load_kernel(probe);
  check(cudaLaunchKernel(launchable(probe), dim3(1), dim3(4), parameters, 0, static_cast<cudaStream_t>(stream)),
        "cudaLaunchKernel");
  stream.wait();
}

}  // namespace

void probe_write(int device, uintptr_t address, int64_t words, uint64_t seed) {
  run(device, {reinterpret_cast<uint64_t*>(address), words, seed, nullptr});
}

int64_t probe_read(int device, uintptr_t address, int64_t words, uint64_t seed) {
  const OnDevice on(device);
  uint32_t* wrong = nullptr;
  const size_t bytes = static_cast<size_t>(words) * sizeof *wrong;
  check(cudaHostAlloc(reinterpret_cast<void**>(&wrong), bytes, cudaHostAllocMapped | cudaHostAllocPortable),
        "cudaHostAlloc");
  std::memset(wrong, 0, bytes);
  try {
    uint32_t* on_device = nullptr;
    check(cudaHostGetDevicePointer(reinterpret_cast<void**>(&on_device), wrong, 0), "cudaHostGetDevicePointer");
    run(device, {reinterpret_cast<uint64_t*>(address), words, seed, on_device});
  } catch (...) {
    (void)cudaFreeHost(wrong);
    throw;
  }
  const auto count = std::count(wrong, wrong + words, 1u);
  (void)cudaFreeHost(wrong);
  return count;
}

}  // namespace pc::cuda
