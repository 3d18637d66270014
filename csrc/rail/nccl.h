// NCCL, loaded at run time: never linked, no NVIDIA header needed.
// pycollective/comm/cuda/nccl/library.py decides which file is loaded.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "schedule/collectives.h"

namespace pc::cuda {

// Our declarations of NCCL's C interface.  Layouts and numbers are part of its ABI and have not changed since 2.17.
struct NcclUniqueId { char bytes[128]; };
enum NcclResult : int { kNcclSuccess = 0, kNcclInProgress = 7 };  // all others are errors
constexpr int kNcclScalarOnHost = 1;
struct NcclConfig {  // as of 2.17; later libraries read `size` and use defaults for newer fields
  size_t size;
  unsigned magic;
  unsigned version;
  int blocking;
  int cga_cluster_size;
  int min_ctas;
  int max_ctas;
  const char* net_name;
};
using NcclHandle = struct NcclOpaque*;

// X(member, name, result, parameters)
// clang-format off
#define PC_NCCL_FUNCTIONS(X)                                                                                          \
  X(get_unique_id, ncclGetUniqueId, int, (NcclUniqueId*))                                                             \
  X(init, ncclCommInitRankConfig, int, (NcclHandle*, int, NcclUniqueId, int, NcclConfig*))                            \
  X(finalize, ncclCommFinalize, int, (NcclHandle))                                                                    \
  X(destroy, ncclCommDestroy, int, (NcclHandle))                                                                      \
  X(abort, ncclCommAbort, int, (NcclHandle))                                                                          \
  X(async_error, ncclCommGetAsyncError, int, (NcclHandle, int*))                                                      \
  X(error_string, ncclGetErrorString, const char*, (int))                                                             \
  X(last_error, ncclGetLastError, const char*, (NcclHandle))                                                          \
  X(group_start, ncclGroupStart, int, ())                                                                             \
  X(group_end, ncclGroupEnd, int, ())                                                                                 \
  X(make_premul, ncclRedOpCreatePreMulSum, int, (int*, void*, int, int, NcclHandle))                                  \
  X(drop_op, ncclRedOpDestroy, int, (int, NcclHandle))                                                                \
  X(allreduce, ncclAllReduce, int, (const void*, void*, size_t, int, int, NcclHandle, cudaStream_t))                  \
  X(reduce, ncclReduce, int, (const void*, void*, size_t, int, int, int, NcclHandle, cudaStream_t))                   \
  X(broadcast, ncclBroadcast, int, (const void*, void*, size_t, int, int, NcclHandle, cudaStream_t))                  \
  X(reduce_scatter, ncclReduceScatter, int, (const void*, void*, size_t, int, int, NcclHandle, cudaStream_t))         \
  X(allgather, ncclAllGather, int, (const void*, void*, size_t, int, NcclHandle, cudaStream_t))                       \
  X(send, ncclSend, int, (const void*, size_t, int, int, NcclHandle, cudaStream_t))                                   \
  X(recv, ncclRecv, int, (void*, size_t, int, int, NcclHandle, cudaStream_t))
// clang-format on

struct NcclError : SystemFailure { using SystemFailure::SystemFailure; };

// One loaded copy.  It stays loaded until the process ends: NCCL runs its own threads.
class NcclLibrary {
 public:
  static constexpr int kOldest = 21700;  // ncclConfig_t with a limit on blocks

  // Throws SystemFailure: no such file, not NCCL, or older than kOldest.
  explicit NcclLibrary(const std::string& file);
  int version() const { return version_; }
  const std::string& path() const { return path_; }
  std::string unique_id() const;
  // Throws NcclError with the call, NCCL's name of the error and its last error message.  `handle` may be null.
  void check(int result, const char* what, NcclHandle handle) const;

#define PC_DECLARE(member, name, result, parameters) result(*member) parameters = nullptr;
  PC_NCCL_FUNCTIONS(PC_DECLARE)
#undef PC_DECLARE

 private:
  int version_ = 0;
  std::string path_;
};

std::string nccl_version_text(int version);  // 22304 -> "2.23.4"

// One collective of one rank.
struct NcclCall {
  Collective kind;
  const char* x;
  char* out;
  int64_t count;                // elements of the logical buffer
  std::vector<int64_t> counts;  // of each block: one per rank; for alltoall size * size, by sender and then receiver
  int type;                     // ncclDataType_t
  int64_t itemsize;
  int op;              // ncclRedOp_t
  std::string scalar;  // of the element type: a factor on every contribution; empty for none
  int root;
  cudaStream_t stream;
};

// One rank's part of a communicator.  Every NCCL call returns at once (its "non-blocking" mode), so that nothing here
// waits for a peer that is gone: `settle` does the waiting, and another thread may abort meanwhile.
class NcclComm {
 public:
  // Starts connecting to the other ranks.  `most_blocks`: 0 for NCCL's default.
  NcclComm(std::shared_ptr<const NcclLibrary> library, const std::string& id, int size, int rank, int device,
           int most_blocks);
  ~NcclComm();
  NcclComm(const NcclComm&) = delete;

  // Waits until the call is in the stream (or the ranks are connected); false when the time has expired.
  bool settle(double seconds);
  // Enqueues a call on its stream; returns the result of `settle`.
  bool run(const NcclCall& call, double seconds);
  // The asynchronous error so far, if any.
  std::optional<std::string> failure();
  // Makes kernels in flight give up, and releases everything.  May be called from any thread, and repeatedly.
  void abort();
  // Finalizes together with the other ranks; false if they did not within the time and it was aborted instead.
  bool close(double seconds);

 private:
  NcclHandle require() const;
  void begin(const NcclCall& call, int op);
  void exchange(const NcclCall& call);
  void in_blocks(const NcclCall& call, int op);
  void started(int result, const char* what);

  std::shared_ptr<const NcclLibrary> nccl_;
  int size_, rank_, device_;
  std::mutex mutex_;  // NCCL's calls on one communicator must not overlap
  NcclHandle handle_ = nullptr;
};

}  // namespace pc::cuda
