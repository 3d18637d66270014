// The calling thread's device, and operations that are safe while a stream is being captured.
#pragma once

#include <cuda_runtime.h>

#include "base/cuda/error.h"

namespace pc::cuda {

// Permits allocations and copies while a stream is being captured, by this thread or another: they are not part of the
// capture.
class CaptureAside {
 public:
  CaptureAside() { check(cudaThreadExchangeStreamCaptureMode(&mode_), "cudaThreadExchangeStreamCaptureMode"); }
  ~CaptureAside() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
  CaptureAside(const CaptureAside&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// Sets the calling thread's device for the scope, and exempts its operations from captures.
class OnDevice {
 public:
  explicit OnDevice(int device) {
    check(cudaGetDevice(&before_), "cudaGetDevice");
    if (device != before_) check(cudaSetDevice(device), "cudaSetDevice");
    changed_ = device != before_;
  }
  ~OnDevice() {
    if (changed_) (void)cudaSetDevice(before_);
  }
  OnDevice(const OnDevice&) = delete;

 private:
  const CaptureAside aside_;
  int before_ = 0;
  bool changed_ = false;
};

// The same for destructors: never throws, and leaves an error of the program pending.  During driver shutdown there is
// nothing left to do.
class QuietlyOn {
 public:
  explicit QuietlyOn(int device) {
    changed_ = cudaGetDevice(&before_) == cudaSuccess && before_ != device && cudaSetDevice(device) == cudaSuccess;
    exchanged_ = cudaThreadExchangeStreamCaptureMode(&mode_) == cudaSuccess;
  }
  ~QuietlyOn() {
    if (exchanged_) (void)cudaThreadExchangeStreamCaptureMode(&mode_);
    if (changed_) (void)cudaSetDevice(before_);
    if (!was_pending_) (void)cudaGetLastError();
  }
  QuietlyOn(const QuietlyOn&) = delete;

 private:
  const bool was_pending_ = cudaPeekAtLastError() != cudaSuccess;
  int before_ = 0;
  bool changed_ = false, exchanged_ = false;
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

inline int device_attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
  return value;
}

// A kernel as the runtime's launch functions take it: the typed form of CUDA 12 does not take functions.
template <class F>
auto launchable(F* kernel) {
#if CUDART_VERSION >= 13000
  return kernel;
#else
  return reinterpret_cast<const void*>(kernel);
#endif
}

// Loads a kernel now rather than at its first launch.
template <class F>
void load_kernel(F* kernel) {
  cudaFuncAttributes unused;
  check(cudaFuncGetAttributes(&unused, reinterpret_cast<const void*>(kernel)), "cudaFuncGetAttributes");
}

// A non-blocking stream; each operation submitted through it has completed when the call returns.
class OwnStream {
 public:
  OwnStream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags"); }
  ~OwnStream() { (void)cudaStreamDestroy(stream_); }
  OwnStream(const OwnStream&) = delete;
  operator cudaStream_t() const { return stream_; }
  void wait() const { check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }
  void upload(void* into, const void* from, size_t bytes) const {
    check(cudaMemcpyAsync(into, from, bytes, cudaMemcpyHostToDevice, stream_), "cudaMemcpyAsync");
    wait();
  }
  void clear(void* into, size_t bytes) const {
    check(cudaMemsetAsync(into, 0, bytes, stream_), "cudaMemsetAsync");
    wait();
  }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace pc::cuda
