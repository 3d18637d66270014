// Copies between a device and pinned host memory for calls that the CPU executes: see executor/device_copies.h.
#pragma once

#include <cuda_runtime.h>

#include "executor/device_copies.h"

namespace pc::cuda {

class StagingCopies {
 public:
  // Throws SystemFailure.
  explicit StagingCopies(int device);
  ~StagingCopies();  // waits for the copies
  StagingCopies(const StagingCopies&) = delete;

  // The functions for the executor.  Valid as long as this object.
  const DeviceCopies& table() const { return table_; }
  uint64_t memory_bytes() const { return memory_bytes_; }
  // Work that is enqueued later in this stream waits for all copies so far.  Throws SystemFailure.
  void hold_back(cudaStream_t stream);
  void drain() const;  // waits for all copies.  Throws SystemFailure.

 private:
  static constexpr uint64_t kMarks = 128;  // more than the executor has outstanding: two for each of its slots

  // A stream, and the events of its last marks, in turn.
  struct CopyStream {
    cudaStream_t stream = nullptr;
    cudaEvent_t events[kMarks] = {};
    uint64_t marked = 0, reached = 0;
  };

  bool succeeded(cudaError_t result, const char* what);
  char* memory(uint64_t bytes);
  bool copy(CopyDirection direction, void* into, const void* from, uint64_t bytes);
  uint64_t mark(CopyDirection direction);
  int32_t reached(CopyDirection direction, uint64_t mark);
  CopyStream& stream_of(CopyDirection direction) { return streams_[static_cast<int32_t>(direction)]; }
  void release();

  int device_;
  CopyStream streams_[2];
  char* memory_ = nullptr;
  uint64_t memory_bytes_ = 0;
  char error_[256] = "";
  DeviceCopies table_;
};

}  // namespace pc::cuda
