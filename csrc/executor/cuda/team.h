// One process's part of a communicator on GPUs: its ranks' memory, its plans, and the launch of calls.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "executor/cuda/device_bytes.h"
#include "executor/cuda/kernels/arguments.h"
#include "executor/cuda/kernels/kernels.h"
#include "executor/cuda/plan_pool.h"

namespace pc::cuda {

// The parameters of a call other than its arrays.
struct CallKind {
  Dtype dtype;
  Operator op;
  double prescale, divisor, postscale;
  bool reduces;
  bool weighted;  // adds what it reads, each times its weight
  uint64_t digest;  // of the fingerprint: ranks whose digests differ report a mismatch
};

using Table = std::vector<int32_t>;

// A compiled schedule for the local ranks, and the positions of its chunks, in elements, as in Layout.
struct Compiled {
  std::vector<Table> tables;
  std::vector<int64_t> length, input_offset, output_offset;
};

// A user-defined operator, compiled for one element type.
struct CustomOperator {
  virtual ~CustomOperator() = default;
  virtual Kernels kernels() const = 0;
  virtual uint64_t address() const { return 0; }  // of a C function, if kernels call one
  virtual void load(int /*device*/) const {}      // now rather than at the first launch
};

// The reusable part of a call.
struct Plan {
  bool low_latency = false;
  Kernels kernels;
  Arguments schedule{};
  LowLatencyArguments exchange{};
  int32_t most_channels = 1;
  std::shared_ptr<const CustomOperator> custom;
  PooledBytes memory;
};

class Team final : public WaitsForPeers {
 public:
  // Bytes of device memory of a rank's mailbox.
  static int64_t mailbox_bytes(int32_t size, int32_t channels, int64_t scratch_bytes);
  // Blocks that each of `sharing` ranks on the device can run concurrently; 0: too many ranks.
  static int32_t most_channels(int device, int32_t sharing);

  // `mailboxes`: of all ranks, as mapped here, zeroed.  A process runs one rank, or all of them.  `shared`: the device
  // also runs other ranks, whose blocks must fit beside these: launches are cooperative.  `plan_bytes`: initial size of
  // the memory for plans.
  Team(int device, int32_t size, int32_t first_rank, int32_t ranks_here, const std::vector<uintptr_t>& mailboxes,
       int32_t channels, int64_t scratch_bytes, bool shared, size_t plan_bytes);
  ~Team() override;

  void add_window(int64_t id, const std::vector<uintptr_t>& bases, int64_t bytes);
  void remove_window(int64_t id);
  void wait() const;  // for the calls in flight
  bool idle() const override;
  // Completes or abandons the calls in flight within seconds.  False: their kernels do not end.
  bool end();
  PlanPool::Use plan_memory() const { return pool_->use(); }
  // The longest message that the low-latency path supports here: each of its channels needs a block.
  int64_t low_latency_bytes() const;
  int32_t low_latency_channels() const { return std::min(kLowLatencyChannels, mailbox_.channels); }
  // The window that contains the bytes, and their offset in it.
  std::optional<std::pair<int64_t, int64_t>> locate(int32_t member, uintptr_t address, int64_t bytes) const;

  // `fallback`: the same call staged, for when the ranks' placements differ; without tables if there is none.
  std::shared_ptr<Plan> plan(const Compiled& compiled, const Compiled& fallback, const CallKind& work,
                             uint32_t placement, bool negotiates, std::shared_ptr<const CustomOperator> custom) const;
  // `longest`: elements of the longest message between any two ranks, the same on all ranks.
  std::shared_ptr<Plan> low_latency_plan(const std::vector<Exchange>& exchanges, int64_t longest, const CallKind& work,
                                         std::shared_ptr<const CustomOperator> custom) const;

  struct Buffers { uintptr_t input, output; };
  // A copy made before the call, but after all earlier calls, in whatever streams these are.
  struct Copied { uintptr_t into, from, bytes; };
  // Enqueues the call on the stream.  `max_channels`: 0 for no limit; the same on all ranks.
  void run(const std::shared_ptr<Plan>& plan, const std::vector<Buffers>& buffers, const std::vector<Copied>& copies,
           cudaStream_t stream, int32_t max_channels, double timeout);

  struct Fault {
    DeviceFault kind;
    FaultRecord record;
  };
  std::optional<Fault> fault() const;
  void abort();

 private:
  struct Window {
    std::vector<uintptr_t> bases;
    int64_t bytes;
  };
  Place place(int32_t member, uintptr_t address) const;
  void fill(CallArguments& a, const CallKind& work, const CustomOperator* custom) const;
  PlanView view_of(const Compiled& compiled, size_t element) const;
  // A stream's identity: the id of its capture, or its own if it is not being captured.
  struct StreamIdentity {
    bool capturing;
    unsigned long long number;
  };
  static StreamIdentity identity_of(cudaStream_t stream);
  uint64_t completed(bool waits) const;
  bool settle(double seconds) const;
  void follow(cudaStream_t stream, const StreamIdentity& identity) const;
  void record(const std::shared_ptr<Plan>& plan, cudaStream_t stream, const StreamIdentity& identity);
  void record_captured(cudaStream_t stream, unsigned long long capture);

  int device_;
  int32_t size_, first_rank_, ranks_here_;
  int32_t threads_;
  bool shared_;
  Mailbox mailbox_;
  std::vector<uintptr_t> mailboxes_;
  DeviceBytes states_, windows_table_, claimed_;
  HostWords* host_ = nullptr;
  HostWords* host_on_device_ = nullptr;
  cudaEvent_t latest_ = nullptr;    // the last call has completed, whether it was launched or replayed
  cudaEvent_t captured_ = nullptr;  // the same, for the calls within a capture
  std::optional<unsigned long long> last_stream_, last_capture_;  // of the last call
  cudaGraphNode_t last_call_ = nullptr, recorder_ = nullptr;  // of that capture: its last call, and the record of it
  std::map<int64_t, Window> windows_;
  std::shared_ptr<PlanPool> pool_;
  uint64_t calls_ = 0;  // enqueued
  std::vector<std::shared_ptr<Plan>> replayable_;  // a graph may replay them at any time
  mutable std::mutex mutex_;
};

}  // namespace pc::cuda
