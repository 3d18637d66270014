// Devices, errors, and the execution of kernels.
#include <set>

#include "machine.h"

namespace pc_emulated {

bool cooperative() { return !flag("PC_EMULATED_NO_COOPERATIVE"); }

std::mutex loaded_mutex;
std::set<const void*> loaded;

std::atomic<int> running{0};  // kernels

bool load(const void* kernel) {
  const std::lock_guard lock(loaded_mutex);
  if (loaded.contains(kernel)) return true;
  if (running.load() > 0) return false;
  loaded.insert(kernel);
  return true;
}

thread_local cudaError_t last_error = cudaSuccess;

bool kernels_run() { return running.load() > 0; }

unsigned multiprocessors() { return static_cast<unsigned>(number("PC_EMULATED_SMS", 8)); }

void enqueue(Stream* stream, std::function<void()> work) {
  Stream* at = real(stream);
  if (at->capture != nullptr) at->capture->add([work = std::move(work)] { return work; });
  else at->add(std::move(work));
}

void run_grid(unsigned blocks, unsigned threads, const std::function<void()>& thread) {
  std::vector<std::unique_ptr<Block>> all;
  for (unsigned b = 0; b < blocks; ++b) all.push_back(std::make_unique<Block>(threads));
  std::vector<std::thread> all_threads;
  ++running;
  for (unsigned b = 0; b < blocks; ++b) {
    for (unsigned t = 0; t < threads; ++t) {
      all_threads.emplace_back([&, b, t] {
        block = all[b].get();
        block_index = b;
        thread_index = t;
        block_dim = threads;
        grid_dim = blocks;
        turn = 0;
        thread();
      });
    }
  }
  for (std::thread& one : all_threads) one.join();
  --running;
}

}  // namespace pc_emulated

using namespace pc_emulated;

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel) {
  *attributes = {};
  return kernel != nullptr && load(kernel) ? cudaSuccess : cudaErrorInvalidDeviceFunction;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int, size_t) {
  *blocks = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = number("PC_EMULATED_DEVICES", 1);
  return *count > 0 ? cudaSuccess : cudaErrorNoDevice;
}
cudaError_t cudaGetDevice(int* found) {
  *found = device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int wanted) {
  if (wanted < 0 || wanted >= number("PC_EMULATED_DEVICES", 1)) return cudaErrorInvalidDevice;
  device = wanted;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* prop, int which) {
  if (which < 0 || which >= number("PC_EMULATED_DEVICES", 1)) return cudaErrorInvalidDevice;
  std::memset(static_cast<void*>(prop), 0, sizeof *prop);
  std::strcpy(prop->name, "emulated on CPU threads");
  prop->uuid.bytes[0] = static_cast<char>(which + 1);
  prop->totalGlobalMem = size_t{1} << 30;
  prop->major = 9;
  prop->multiProcessorCount = static_cast<int>(multiprocessors());
  prop->l2CacheSize = 1 << 16;
  prop->pciBusID = which;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: *value = 4; break;
    case cudaDevAttrMultiProcessorCount: *value = static_cast<int>(multiprocessors()); break;
    case cudaDevAttrCooperativeLaunch: *value = cooperative() ? 1 : 0; break;
  }
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) { return cudaDriverGetVersion(version); }
cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return last_error; }
// Simulates other code of this thread that ignores a failed call.
extern "C" __attribute__((visibility("default"))) void pc_emulated_leave_error(int error) {
  last_error = static_cast<cudaError_t>(error);
}

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorNoDevice: return "cudaErrorNoDevice";
    case cudaErrorStreamCaptureUnsupported: return "cudaErrorStreamCaptureUnsupported";
    case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
    case cudaErrorIllegalAddress: return "cudaErrorIllegalAddress";
    case cudaErrorMapBufferObjectFailed: return "cudaErrorMapBufferObjectFailed";
    case cudaErrorCooperativeLaunchTooLarge: return "cudaErrorCooperativeLaunchTooLarge";
    case cudaErrorInvalidDeviceFunction: return "cudaErrorInvalidDeviceFunction (not loaded)";
    case cudaErrorNotSupported: return "cudaErrorNotSupported";
    default: return "cudaErrorUnknown";
  }
}
const char* cudaGetErrorString(cudaError_t) { return "emulated"; }
