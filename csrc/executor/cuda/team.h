// One process's end of a communicator on GPUs: its ranks' memory, its plans, and the launch of a call.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "executor/cuda/arguments.h"
#include "executor/cuda/device_bytes.h"
#include "executor/cuda/kernels.h"
#include "executor/cuda/plan_pool.h"

namespace pc::cuda {

// What a call does, apart from its arrays.
struct CallKind {
  Dtype dtype;
  Operator op;
  double prescale, divisor, postscale;
  bool reduces;
  uint64_t digest;  // of the fingerprint: ranks whose digests differ report a mismatch
};

using Table = std::vector<int32_t>;

// A compiled schedule for the ranks here, and where its chunks lie, in elements, as in Layout.
struct Compiled {
  std::vector<Table> tables;
  std::vector<int64_t> length, input_offset, output_offset;
};

// The user's own operator, compiled for one element type.
struct CustomOperator {
  virtual ~CustomOperator() = default;
  virtual Kernels kernels() const = 0;
  virtual uint64_t address() const { return 0; }  // of a C function, where kernels call one
  virtual void load(int /*device*/) const {}      // now, and not when it is first launched
};

// What of a call is the same each time.
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
  // Bytes of device memory that a rank's mailbox takes.
  static int64_t mailbox_bytes(int32_t size, int32_t channels, int64_t scratch_bytes);
  // Blocks that each of `sharing` ranks on the device can have at the same time; 0: too many ranks for it.
  static int32_t most_channels(int device, int32_t sharing);

  // `mailboxes`: of all ranks, as mapped here, zeroed.  A process runs one rank, or all of them.  `shared`: the device
  // runs other ranks too, whose blocks must find room beside these: launches are cooperative.  `plan_bytes`: of the
  // memory for plans to begin with.
  Team(int device, int32_t size, int32_t first_rank, int32_t ranks_here, const std::vector<uintptr_t>& mailboxes,
       int32_t channels, int64_t scratch_bytes, bool shared, size_t plan_bytes);
  ~Team() override;

  void add_window(int64_t id, const std::vector<uintptr_t>& bases, int64_t bytes);
  void remove_window(int64_t id);
  void wait() const;  // for the calls in flight
  bool idle() const override;
  // Within seconds: calls in flight complete, or are given up.  False: their kernels do not end.
  bool end();
  PlanPool::Use plan_memory() const { return pool_->use(); }
  // The longest message that the low-latency path takes here: its channels must have a block each.
  int64_t low_latency_bytes() const;
  // The window that holds the bytes, and where in it they begin.
  std::optional<std::pair<int64_t, int64_t>> locate(int32_t member, uintptr_t address, int64_t bytes) const;

  // `fallback`: the same call staged, for when the ranks' arrays do not lie alike; without tables if there is none.
  std::shared_ptr<Plan> plan(const Compiled& compiled, const Compiled& fallback, const CallKind& work,
                             uint32_t placement, bool negotiates, std::shared_ptr<const CustomOperator> custom) const;
  // `longest`: elements of the longest message between any two ranks, the same on all ranks.
  std::shared_ptr<Plan> low_latency_plan(const std::vector<Exchange>& exchanges, int64_t longest, const CallKind& work,
                                         std::shared_ptr<const CustomOperator> custom) const;

  struct Buffers { uintptr_t input, output; };
  // What is copied before the call, but after the calls before it, in whatever streams these are.
  struct Copied { uintptr_t into, from, bytes; };
  // Puts the call into the stream.  `max_channels`: 0 for no limit; the same on all ranks.
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
  ScaleFactors scaling(const CallKind& work) const;
  void fill(CallArguments& a, const CallKind& work, const CustomOperator* custom) const;
  Kernels choose(const CallKind& work, const CustomOperator* custom) const;
  PlanView view_of(const Compiled& compiled, size_t element) const;
  // Of a stream: the number of its capture; where it is not being captured, its own.
  struct StreamIdentity {
    bool capturing;
    unsigned long long number;
  };
  static StreamIdentity identity_of(cudaStream_t stream);
  uint64_t completed(bool waits) const;
  bool settle(double seconds) const;
  void follow(cudaStream_t stream, const StreamIdentity& identity) const;
  void record(const std::shared_ptr<Plan>& plan, cudaStream_t stream, const StreamIdentity& identity);

  int device_;
  int32_t size_, first_rank_, ranks_here_;
  int32_t threads_;
  bool shared_;
  Mailbox mailbox_;
  DeviceBytes mailboxes_, states_, windows_table_, claimed_;
  HostWords* host_ = nullptr;
  HostWords* host_on_device_ = nullptr;
  cudaEvent_t latest_ = nullptr;    // the last call has completed, whether it was launched or replayed
  cudaEvent_t captured_ = nullptr;  // the same, for the calls within a capture
  std::optional<unsigned long long> last_stream_, last_capture_;  // which the last call was put into
  std::map<int64_t, Window> windows_;
  std::shared_ptr<PlanPool> pool_;
  uint64_t calls_ = 0;  // put into streams
  std::vector<std::shared_ptr<Plan>> replayable_;  // a graph may replay them at any time
  mutable std::mutex mutex_;
};

}  // namespace pc::cuda
