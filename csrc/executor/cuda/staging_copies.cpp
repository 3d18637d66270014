#include "executor/cuda/staging_copies.h"

#include <algorithm>
#include <cstdio>

#include "base/cuda/device.h"

namespace pc::cuda {
namespace {

constexpr uint64_t kLeastMemory = 1 << 20;  // bytes

StagingCopies& object(void* self) { return *static_cast<StagingCopies*>(self); }

}  // namespace

StagingCopies::StagingCopies(int device) : device_(device) {
  table_.self = this;
  table_.memory = [](void* self, uint64_t bytes) { return object(self).memory(bytes); };
  table_.copy = [](void* self, CopyDirection direction, void* into, const void* from, uint64_t bytes) {
    return object(self).copy(direction, into, from, bytes);
  };
  table_.mark = [](void* self, CopyDirection direction) { return object(self).mark(direction); };
  table_.reached = [](void* self, CopyDirection direction, uint64_t mark) {
    return object(self).reached(direction, mark);
  };
  table_.error = [](void* self) -> const char* { return object(self).error_; };
  const OnDevice on(device);
  try {
    for (CopyStream& copies : streams_) {
      check(cudaStreamCreateWithFlags(&copies.stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
      for (cudaEvent_t& event : copies.events)
        check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    }
  } catch (...) {
    release();
    throw;
  }
}

StagingCopies::~StagingCopies() {
  const QuietlyOn on(device_);
  for (const CopyStream& copies : streams_) (void)cudaStreamSynchronize(copies.stream);
  release();
}

void StagingCopies::release() {
  for (const CopyStream& copies : streams_) {
    for (const cudaEvent_t event : copies.events)
      if (event != nullptr) (void)cudaEventDestroy(event);
    if (copies.stream != nullptr) (void)cudaStreamDestroy(copies.stream);
  }
  if (memory_ != nullptr) (void)cudaFreeHost(memory_);
}

void StagingCopies::hold_back(cudaStream_t stream) {
  const OnDevice on(device_);
  for (const CopyDirection direction : {CopyDirection::to_host, CopyDirection::to_device}) {
    const CopyStream& from = stream_of(direction);
    if (from.marked > 0)
      check(cudaStreamWaitEvent(stream, from.events[from.marked % kMarks], 0), "cudaStreamWaitEvent");
  }
}

void StagingCopies::drain() const {
  const OnDevice on(device_);
  for (const CopyStream& copies : streams_) check(cudaStreamSynchronize(copies.stream), "cudaStreamSynchronize");
}

// -- for the executor, which does not expect exceptions -------------------------------------------------------------

bool StagingCopies::succeeded(cudaError_t result, const char* what) {
  if (result == cudaSuccess) return true;
  (void)cudaGetLastError();
  (void)std::snprintf(error_, sizeof error_, "%s: %s", what, cudaGetErrorString(result));
  return false;
}

// Also after a larger call: the memory only grows, so that a job reaches a state in which nothing is allocated.
char* StagingCopies::memory(uint64_t bytes) {
  if (bytes <= memory_bytes_) return memory_;
  const QuietlyOn on(device_);
  for (const CopyStream& copies : streams_)
    if (!succeeded(cudaStreamSynchronize(copies.stream), "cudaStreamSynchronize")) return nullptr;
  const uint64_t size = std::max(bytes, kLeastMemory);
  void* made = nullptr;
  if (!succeeded(cudaHostAlloc(&made, size, cudaHostAllocPortable), "cudaHostAlloc")) return nullptr;
  if (memory_ != nullptr) (void)cudaFreeHost(memory_);
  memory_ = static_cast<char*>(made);
  memory_bytes_ = size;
  return memory_;
}

bool StagingCopies::copy(CopyDirection direction, void* into, const void* from, uint64_t bytes) {
  const QuietlyOn on(device_);
  const auto kind = direction == CopyDirection::to_host ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice;
  return succeeded(cudaMemcpyAsync(into, from, bytes, kind, stream_of(direction).stream), "cudaMemcpyAsync");
}

uint64_t StagingCopies::mark(CopyDirection direction) {
  const QuietlyOn on(device_);
  CopyStream& in = stream_of(direction);
  cudaEvent_t const event = in.events[(in.marked + 1) % kMarks];
  // The event's previous mark counts as reached from now on.
  if (in.marked + 1 > in.reached + kMarks) {
    if (!succeeded(cudaEventSynchronize(event), "cudaEventSynchronize")) return 0;
    in.reached = in.marked + 1 - kMarks;
  }
  if (!succeeded(cudaEventRecord(event, in.stream), "cudaEventRecord")) return 0;
  return ++in.marked;
}

int32_t StagingCopies::reached(CopyDirection direction, uint64_t mark) {
  CopyStream& in = stream_of(direction);
  if (in.reached >= mark) return 1;
  const QuietlyOn on(device_);
  for (; in.reached < mark; ++in.reached) {
    const cudaError_t result = cudaEventQuery(in.events[(in.reached + 1) % kMarks]);
    if (result == cudaErrorNotReady) {
      (void)cudaGetLastError();
      return 0;
    }
    if (!succeeded(result, "a copy")) return -1;
  }
  return 1;
}

}  // namespace pc::cuda
