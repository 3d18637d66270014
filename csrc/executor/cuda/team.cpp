#include "executor/cuda/team.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/cuda/capture.h"
#include "base/cuda/device.h"
#include "base/environment.h"
#include "base/status.h"
#include "executor/cuda/loading.h"
#include "schedule/schedule.h"

namespace pc::cuda {
namespace {

// Plain data, assembled on the host and uploaded in one piece.
class Upload {
 public:
  template <class T>
  size_t add(const T* from, size_t count) {
    const size_t at = (bytes_.size() + 15) / 16 * 16;
    bytes_.resize(at + count * sizeof(T));
    if (count > 0) std::memcpy(bytes_.data() + at, from, count * sizeof(T));
    return at;
  }
  size_t add_layout(const Compiled& c) {
    std::vector<int64_t> words;
    for (size_t i = 0; i < c.length.size(); ++i)
      words.insert(words.end(), {c.length[i], c.input_offset[i], c.output_offset[i]});
    return add(words.data(), words.size());
  }
  size_t size() const { return bytes_.size(); }
  const char* data() const { return bytes_.data(); }

 private:
  std::vector<char> bytes_;
};

constexpr double kGrace = 1.0;   // seconds for calls in flight to complete when their team ends
constexpr double kEnding = 5.0;  // and for their kernels to end after an abort
constexpr int64_t kLeastTile = 8192;  // bytes: one vector for each thread of a block

void require(bool condition, const char* what) {
  if (!condition) throw InvalidArgument(what);
}

// Blocks of one rank may start late: a block waits only for the peers' blocks of its own channel.
template <class A>
void launch(void (*kernel)(A), int32_t blocks, int32_t threads, bool cooperative, A& arguments, cudaStream_t stream) {
  void* parameters[] = {&arguments};
  const dim3 grid(static_cast<unsigned>(blocks)), block(static_cast<unsigned>(threads));
  if (cooperative)
    check(cudaLaunchCooperativeKernel(launchable(kernel), grid, block, parameters, 0, stream),
          "cudaLaunchCooperativeKernel");
  else check(cudaLaunchKernel(launchable(kernel), grid, block, parameters, 0, stream), "cudaLaunchKernel");
}

ScaleFactors scaling_of(const CallKind& work) {
  const bool active = work.reduces && (work.prescale != 1.0 || work.divisor != 1.0 || work.postscale != 1.0);
  return {work.prescale, work.divisor, work.postscale, active ? 1 : 0};
}

// Whether a rank sends its first `count` elements to every rank and receives as many at the beginning of its output.
bool sends_all_to_all(const Exchange& e, int32_t size, int64_t count) {
  for (int32_t r = 0; r < size; ++r)
    if (e.send_offset[r] != 0 || e.recv_offset[r] != 0 || e.send_count[r] != count || e.recv_count[r] != count)
      return false;
  return true;
}

Kernels choose(const CallKind& work, const CustomOperator* custom) {
  const bool scaled = scaling_of(work).active != 0;
  if (scaled && !(is_arithmetic(work.op) && work.dtype != Dtype::bool_))
    throw WrongType(std::string("operator ") + name_of(work.op) + " on " + name_of(work.dtype) +
                    " takes no prescale or postscale");
  if (custom != nullptr) return custom->kernels();
  if (work.weighted) return kernels_of_weighted_sums(work.dtype);
  if (!work.reduces) return kernels_of_copies();
  return kernels_for(work.dtype, work.op, scaled);
}

}  // namespace

int64_t Team::mailbox_bytes(int32_t size, int32_t channels, int64_t scratch_bytes) {
  return Mailbox{size, channels, scratch_bytes}.bytes();
}

// One block per multiprocessor is enough to fill it: each of its threads has eight loads in flight.
int32_t Team::most_channels(int device, int32_t sharing) {
  if (sharing > 1 && device_attribute(cudaDevAttrCooperativeLaunch, device) == 0) return 0;
  const int32_t each = std::min(load_kernels(device), 1);
  return std::min(kMostChannels, each * device_attribute(cudaDevAttrMultiProcessorCount, device) / sharing);
}

Team::Team(int device, int32_t size, int32_t first_rank, int32_t ranks_here, const std::vector<uintptr_t>& mailboxes,
           int32_t channels, int64_t scratch_bytes, bool shared, size_t plan_bytes)
    : WaitsForPeers(device),
      device_(device),
      size_(size),
      first_rank_(first_rank),
      ranks_here_(ranks_here),
      threads_(std::min(kThreads, device_attribute(cudaDevAttrMaxThreadsPerBlock, device))),
      shared_(shared || ranks_here > 1),
      mailbox_{size, channels, scratch_bytes},
      mailboxes_(mailboxes) {
  require(size >= 1 && size <= kMostRanks, "a communicator has 1 to 64 ranks on the GPUs of a node");
  require(ranks_here == 1 || (ranks_here == size && size <= kMostVirtual),
          "a process runs one rank of a communicator, or all of at most 32");
  require(first_rank >= 0 && first_rank + ranks_here <= size, "no such rank");
  require(mailboxes.size() == static_cast<size_t>(size), "one mailbox a rank");
  require(channels >= 1 && channels <= kMostChannels, "1 to 64 channels");
  const OnDevice on(device);
  load_kernels(device);
  const std::vector<ChannelState> states(static_cast<size_t>(ranks_here) * channels, ChannelState{1, 0, 0, 0, {}});
  states_ = DeviceBytes(device, states.size() * sizeof(ChannelState));
  OwnStream().upload(states_.data(), states.data(), states.size() * sizeof(ChannelState));
  windows_table_ = DeviceBytes(device, sizeof(char*) * kMostWindows * size);
  claimed_ = DeviceBytes(device, sizeof(uint32_t));
  pool_ = std::make_shared<PlanPool>(device, plan_bytes);
  check(cudaHostAlloc(reinterpret_cast<void**>(&host_), sizeof(HostWords), cudaHostAllocMapped | cudaHostAllocPortable),
        "cudaHostAlloc");
  std::memset(static_cast<void*>(host_), 0, sizeof *host_);
  check(cudaHostGetDevicePointer(reinterpret_cast<void**>(&host_on_device_), host_, 0), "cudaHostGetDevicePointer");
  check(cudaEventCreateWithFlags(&latest_, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  check(cudaEventCreateWithFlags(&captured_, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  // An external wait for an event without a record may be for the record in its own graph: that never ends.
  check(cudaEventRecord(latest_, OwnStream()), "cudaEventRecord");
  add(*this);
}

Team::~Team() {
  const QuietlyOn on(device_);
  if (!end()) {  // kernels still use this memory
    give_up_on(device_);
    host_ = nullptr;
  }
  remove(*this);
  if (latest_ != nullptr) (void)cudaEventDestroy(latest_);
  if (captured_ != nullptr) (void)cudaEventDestroy(captured_);
  if (host_ != nullptr)
    free_when_idle(device_, 0, [device = device_, host = host_] {
      const QuietlyOn there(device);
      (void)cudaFreeHost(host);
    });
}

void Team::add_window(int64_t id, const std::vector<uintptr_t>& bases, int64_t bytes) {
  require(bases.size() == static_cast<size_t>(size_), "one base a rank");
  const std::lock_guard lock(mutex_);
  for (const auto& [other, window] : windows_)
    if (other % kMostWindows == id % kMostWindows)
      throw InvalidArgument("too many windows on GPUs live at a time: at most " + std::to_string(kMostWindows));
  const OnDevice on(device_);
  const size_t row = bases.size() * sizeof(char*);
  OwnStream().upload(windows_table_.data() + static_cast<size_t>(id % kMostWindows) * row, bases.data(), row);
  windows_[id] = {bases, bytes};
}

void Team::wait() const {
  const QuietlyOn on(device_);
  (void)cudaEventSynchronize(latest_);  // errors are reported by fault()
}

bool Team::idle() const {
  const QuietlyOn on(device_);
  return cudaEventQuery(latest_) != cudaErrorNotReady;
}

bool Team::end() {
  if (settle(kGrace)) return true;
  abort();
  return settle(kEnding);
}

bool Team::settle(double seconds) const {
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (latest_ != nullptr && !idle()) {
    if (std::chrono::steady_clock::now() >= until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

uint64_t Team::completed(bool waits) const {
  uint64_t put = 0;
  {
    const std::lock_guard lock(mutex_);
    put = calls_;
  }
  if (waits) wait();
  return waits || idle() ? put : 0;
}

void Team::remove_window(int64_t id) {
  const OnDevice on(device_);
  wait();  // outside the lock, which other threads take while holding the GIL
  const std::lock_guard lock(mutex_);
  if (windows_.erase(id) == 0) return;
  const size_t row = static_cast<size_t>(size_) * sizeof(char*);
  OwnStream().clear(windows_table_.data() + static_cast<size_t>(id % kMostWindows) * row, row);
}

int64_t Team::low_latency_bytes() const { return low_latency_channels() * kPackets * kPacketBytes; }

std::optional<std::pair<int64_t, int64_t>> Team::locate(int32_t member, uintptr_t address, int64_t bytes) const {
  const std::lock_guard lock(mutex_);
  for (const auto& [id, window] : windows_) {
    const uintptr_t base = window.bases[static_cast<size_t>(first_rank_ + member)];
    const uintptr_t end = base + static_cast<uintptr_t>(window.bytes);
    if (address >= base && address + static_cast<uintptr_t>(bytes) <= end)
      return std::pair{id, static_cast<int64_t>(address - base)};
  }
  return std::nullopt;
}

// If all ranks share an address space, the address suffices.
Place Team::place(int32_t member, uintptr_t address) const {
  if (ranks_here_ == size_) return {Place::address, static_cast<int64_t>(address)};
  for (const auto& [id, window] : windows_) {
    const uintptr_t base = window.bases[static_cast<size_t>(first_rank_ + member)];
    if (address >= base && address < base + static_cast<uintptr_t>(window.bytes))
      return {id % kMostWindows, static_cast<int64_t>(address - base)};
  }
  return {Place::nowhere, 0};
}

PlanView Team::view_of(const Compiled& compiled, size_t element) const {
  const std::vector<Table>& tables = compiled.tables;
  require(tables.size() == static_cast<size_t>(ranks_here_), "one table for each rank here");
  require(!compiled.length.empty() && compiled.input_offset.size() == compiled.length.size() &&
              compiled.output_offset.size() == compiled.length.size(),
          "three numbers for each chunk");
  int32_t cells = 0;
  for (size_t i = 0; i < tables.size(); ++i) {
    const Schedule checked(tables[i]);
    const ScheduleView view = checked.view();
    require(view.size() == size_ && view.rank() == first_rank_ + static_cast<int32_t>(i),
            "a schedule for another rank");
    require(static_cast<size_t>(view.chunks()) == compiled.length.size(), "the schedule's chunks are not the call's");
    Step step = view.first();
    for (int32_t s = 0; s < view.steps(); ++s, step = step.next())
      require(step.sources() <= kOperands && step.targets() <= kOperands,
              "more operands in a step than a GPU takes (128)");
    cells = view.cells();
  }
  const int64_t longest = *std::max_element(compiled.length.begin(), compiled.length.end());
  const auto bytes = static_cast<int64_t>(element);
  // Large enough to hide the flags, small enough that each channel has one.
  int64_t tile = std::min<int64_t>(static_cast<int64_t>(environment().cuda_tile_bytes),
                                   std::max<int64_t>(kLeastTile, longest * bytes / mailbox_.channels));
  if (cells > 0) tile = std::min(tile, mailbox_.slot_bytes() / cells);
  PlanView view;
  view.tile_elements = std::max<int64_t>(1, tile / 64 * 64 / bytes);
  require(cells == 0 || view.tile_elements * bytes * cells <= mailbox_.slot_bytes(),
          "the schedule needs more scratch than PYCOLLECTIVE_CUDA_SCRATCH gives");
  view.tiles = std::max<int64_t>(1, (longest + view.tile_elements - 1) / view.tile_elements);
  view.chunks = static_cast<int32_t>(compiled.length.size());
  return view;
}

// Fills the arguments common to both kinds of call.
void Team::fill(CallArguments& a, const CallKind& work, const CustomOperator* custom) const {
  a.size = size_;
  a.first_rank = first_rank_;
  a.ranks_here = ranks_here_;
  a.mailbox = mailbox_;
  for (size_t r = 0; r < mailboxes_.size(); ++r) a.mailboxes[r] = reinterpret_cast<char*>(mailboxes_[r]);
  a.states = reinterpret_cast<ChannelState*>(states_.data());
  a.host = host_on_device_;
  a.claimed = reinterpret_cast<uint32_t*>(claimed_.data());
  a.scaling = scaling_of(work);
  a.digest = work.digest;
  a.op = number_of(work.op, work.dtype, a.scaling.active != 0);
  a.custom = custom != nullptr ? custom->address() : 0;
  a.element = static_cast<int32_t>(size_of(work.dtype));
  a.gpu_scope = ranks_here_ == size_ ? 1 : 0;
}

std::shared_ptr<Plan> Team::plan(const Compiled& compiled, const Compiled& fallback, const CallKind& work,
                                 uint32_t placement, bool negotiates,
                                 std::shared_ptr<const CustomOperator> custom) const {
  require_no_pending_error();
  auto plan = std::make_shared<Plan>();
  plan->kernels = choose(work, custom.get());
  if (plan->kernels.schedule == nullptr) throw WrongType("no kernel for this operator and element type");
  const size_t element = size_of(work.dtype);
  const bool falls_back = !fallback.tables.empty();
  Arguments& a = plan->schedule;
  a.plan = view_of(compiled, element);
  a.fallback = falls_back ? view_of(fallback, element) : a.plan;
  // From the staged plan only: the ranks must use the same launch before they know the placement of the others' arrays.
  plan->most_channels = static_cast<int32_t>(std::min<int64_t>(mailbox_.channels, a.fallback.tiles));

  Upload upload;
  const size_t layout_at = upload.add_layout(compiled);
  const size_t fallback_at = falls_back ? upload.add_layout(fallback) : layout_at;
  std::vector<size_t> tables_at, fallbacks_at;
  for (const Table& table : compiled.tables) tables_at.push_back(upload.add(table.data(), table.size()));
  for (const Table& table : fallback.tables) fallbacks_at.push_back(upload.add(table.data(), table.size()));
  plan->memory = pool_->place(upload.size(), [this](bool waits) { return completed(waits); });
  char* base = plan->memory.data();
  const auto words = [](const Table& table) { return static_cast<int32_t>(table.size()); };
  for (size_t r = 0; r < tables_at.size(); ++r) {
    a.tables[r] = {reinterpret_cast<int32_t*>(base + tables_at[r]), nullptr, words(compiled.tables[r]), 0};
    if (!falls_back) continue;
    a.tables[r].fallback = reinterpret_cast<int32_t*>(base + fallbacks_at[r]);
    a.tables[r].fallback_words = words(fallback.tables[r]);
  }
  pool_->upload(base, upload.data(), upload.size());

  fill(a, work, custom.get());
  a.windows = reinterpret_cast<char* const*>(windows_table_.data());
  a.plan.layout = reinterpret_cast<const int64_t*>(base + layout_at);
  a.fallback.layout = reinterpret_cast<const int64_t*>(base + fallback_at);
  const bool logical = work.op == Operator::land || work.op == Operator::lor;
  a.normalises = work.reduces && logical && work.dtype != Dtype::bool_ ? 1 : 0;
  a.negotiates = negotiates ? 1 : 0;
  a.placement = placement;
  plan->custom = std::move(custom);
  return plan;
}

std::shared_ptr<Plan> Team::low_latency_plan(const std::vector<Exchange>& exchanges, int64_t longest,
                                             const CallKind& work, std::shared_ptr<const CustomOperator> custom) const {
  require(exchanges.size() == static_cast<size_t>(ranks_here_), "one exchange for each rank here");
  require_no_pending_error();
  auto plan = std::make_shared<Plan>();
  plan->low_latency = true;
  plan->kernels = choose(work, custom.get());
  if (plan->kernels.low_latency == nullptr) throw WrongType("no kernel for this operator and element type");
  const auto element = static_cast<int64_t>(size_of(work.dtype));
  for (const Exchange& e : exchanges)
    for (int32_t r = 0; r < size_; ++r)
      require(std::max(e.send_count[r], e.recv_count[r]) <= longest, "longer than the longest");
  require(longest * element <= low_latency_bytes(), "a message too long for the low-latency path");
  const int64_t run = kRun * kPacketBytes;
  const int64_t runs = (longest * element + run - 1) / run;
  plan->most_channels = static_cast<int32_t>(std::clamp<int64_t>(runs, 1, low_latency_channels()));
  const size_t bytes = exchanges.size() * sizeof(Exchange);
  plan->memory = pool_->place(bytes, [this](bool waits) { return completed(waits); });
  pool_->upload(plan->memory.data(), exchanges.data(), bytes);

  LowLatencyArguments& a = plan->exchange;
  fill(a, work, custom.get());
  a.exchanges = reinterpret_cast<const Exchange*>(plan->memory.data());
  a.dealt_to = low_latency_channels();
  const auto same = [&](const Exchange& e) { return sends_all_to_all(e, size_, longest); };
  a.uniform = work.reduces && std::all_of(exchanges.begin(), exchanges.end(), same) ? longest : -1;
  plan->custom = std::move(custom);
  return plan;
}

// A stream's handle does not identify it: it may be reused for another stream, and the per-thread stream has the same
// handle in all threads.
Team::StreamIdentity Team::identity_of(cudaStream_t stream) {
  StreamIdentity identity{false, 0};
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamGetCaptureInfo(stream, &status, &identity.number), "cudaStreamGetCaptureInfo");
  identity.capturing = status != cudaStreamCaptureStatusNone;
  if (!identity.capturing) check(cudaStreamGetId(stream, &identity.number), "cudaStreamGetId");
  return identity;
}

// Calls of one team run one after the other, whatever the streams and graphs.  The host is not involved when a graph is
// replayed: the graph waits for the latest call by an external node, and records itself as the latest by another.
void Team::follow(cudaStream_t stream, const StreamIdentity& identity) const {
  if (identity.capturing) {
    if (last_capture_ == identity.number) check(cudaStreamWaitEvent(stream, captured_, 0), "cudaStreamWaitEvent");
    else check(cudaStreamWaitEvent(stream, latest_, cudaEventWaitExternal), "cudaStreamWaitEvent");
  } else if (last_capture_ || (last_stream_ && last_stream_ != identity.number)) {
    check(cudaStreamWaitEvent(stream, latest_, 0), "cudaStreamWaitEvent");
  }
}

void Team::record(const std::shared_ptr<Plan>& plan, cudaStream_t stream, const StreamIdentity& identity) {
  if (identity.capturing) {
    record_captured(stream, identity.number);
    if (std::find(replayable_.begin(), replayable_.end(), plan) == replayable_.end()) replayable_.push_back(plan);
    return;
  }
  check(cudaEventRecord(latest_, stream), "cudaEventRecord");
  last_stream_ = identity.number;
}

// The graph's one record of the latest call is a leaf that depends on the last call: it stands between no two calls.
void Team::record_captured(cudaStream_t stream, unsigned long long capture) {
  const auto [graph, call] = newest_node(stream);
  if (last_capture_ == capture) {
    move_edge(graph, last_call_, call, recorder_);
  } else {
    check(cudaGraphAddEventRecordNode(&recorder_, graph, &call, 1, latest_), "cudaGraphAddEventRecordNode");
    last_capture_ = capture;
  }
  last_call_ = call;
  check(cudaEventRecord(captured_, stream), "cudaEventRecord");
}

void Team::run(const std::shared_ptr<Plan>& plan, const std::vector<Buffers>& buffers,
               const std::vector<Copied>& copies, cudaStream_t stream, int32_t max_channels, double timeout) {
  require(buffers.size() == static_cast<size_t>(ranks_here_), "one pair of buffers for each rank here");
  require_no_pending_error();
  const std::lock_guard lock(mutex_);
  const OnDevice on(device_);
  const StreamIdentity identity = identity_of(stream);
  follow(stream, identity);
  for (const Copied& c : copies)
    check(cudaMemcpyAsync(reinterpret_cast<void*>(c.into), reinterpret_cast<const void*>(c.from), c.bytes,
                          cudaMemcpyDefault, stream),
          "cudaMemcpyAsync");
  const auto nanoseconds = static_cast<uint64_t>(std::min(timeout, 1e9) * 1e9);
  const int32_t limit = max_channels > 0 ? max_channels : kMostChannels;
  if (plan->low_latency) {
    LowLatencyArguments a = plan->exchange;
    a.channels = plan->most_channels;  // packets are per channel: all channels are needed
    a.timeout_ns = nanoseconds;
    for (size_t r = 0; r < buffers.size(); ++r)
      a.buffers[r] = {reinterpret_cast<const void*>(buffers[r].input), reinterpret_cast<void*>(buffers[r].output)};
    launch(plan->kernels.low_latency, ranks_here_ * a.channels, threads_, shared_, a, stream);
  } else {
    Arguments a = plan->schedule;
    a.channels = std::min(plan->most_channels, limit);
    a.timeout_ns = nanoseconds;
    for (size_t r = 0; r < buffers.size(); ++r) {
      const auto member = static_cast<int32_t>(r);
      Place input{Place::nowhere, 0}, output{Place::nowhere, 0};
      if ((a.placement & 1u) != 0) input = place(member, buffers[r].input);
      if ((a.placement & 2u) != 0) output = place(member, buffers[r].output);
      a.buffers[r] = {reinterpret_cast<const void*>(buffers[r].input), reinterpret_cast<void*>(buffers[r].output),
                      input, output};
    }
    launch(plan->kernels.schedule, ranks_here_ * a.channels, threads_, shared_, a, stream);
  }
  plan->memory.used_by(++calls_);
  record(plan, stream, identity);
}

std::optional<Team::Fault> Team::fault() const {
  const uint64_t kind = __atomic_load_n(&host_->fault, __ATOMIC_ACQUIRE);
  if (kind == 0) return std::nullopt;
  return Fault{static_cast<DeviceFault>(kind), host_->record};
}

void Team::abort() { __atomic_store_n(&host_->abort, 1u, __ATOMIC_RELEASE); }

}  // namespace pc::cuda
