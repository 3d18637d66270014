// The GPU's kernels on CPU threads: the same source that nvcc compiles, with the threads of a block as threads.
//
//   cuda_blocks_test MODE SCHEDULES [ONLY [REPEATS]]
//
// schedules   every compiled schedule, several channels per rank and several threads per channel
// packets     the low-latency path, for the staged schedules' collectives
//
// Each rank launches separately, like processes that share windows.  Between calls a rank overwrites its arrays at
// once: a peer that still reads them is a race.
#include <sched.h>

#include <algorithm>
#include <barrier>
#include <memory>
#include <numeric>
#include <random>
#include <thread>
#include <tuple>
#include <utility>

#include "executor/cuda/kernels/kernels_impl.h"
#include "rank.h"

namespace pc::test {
namespace {

constexpr int32_t kChannels = 2;
constexpr int32_t kThreads = 3;  // of a block
constexpr int64_t kScratch = 1 << 20;

// One rank's data in device memory.
struct Device {
  Device(const cuda::Mailbox& mailbox, int32_t channels)
      : mailbox_memory(static_cast<size_t>(mailbox.bytes()) / 64),
        states(static_cast<size_t>(channels), cuda::ChannelState{1, 0, 0, 0, {}}) {}
  struct alignas(64) Line { char bytes[64] = {}; };
  std::vector<Line> mailbox_memory;
  std::vector<cuda::ChannelState> states;
  cuda::HostWords host{};
  uint32_t claimed = 0;
  cuda::Exchange exchange{};
  std::vector<int64_t> layout, fallback_layout;
  char* mailbox() { return mailbox_memory.data()->bytes; }
};

struct Run {
  Run(std::vector<Case> all, int repeats)
      : cases(std::move(all)),
        repeats(repeats),
        world(cases[0].size, array_bytes_for(cases)),
        mailbox{world.size, std::max(kChannels, cuda::kLowLatencyChannels), kScratch} {
    for (int32_t r = 0; r < world.size; ++r) {
      devices.push_back(std::make_unique<Device>(mailbox, mailbox.channels));
      mailboxes.push_back(devices.back()->mailbox());
    }
    const int64_t part = World::kSlots * world.array_bytes;
    for (int64_t window = 0; window < 2; ++window)
      for (int32_t r = 0; r < world.size; ++r)
        windows.push_back(world.windows->data() + (window * world.size + r) * part);
  }
  std::vector<Case> cases;
  int repeats;
  World world;
  cuda::Mailbox mailbox;
  std::vector<std::unique_ptr<Device>> devices;
  std::vector<char*> mailboxes, windows;
};

cuda::PlanView view_of(const Plan& plan, std::vector<int64_t>& layout) {
  layout.clear();
  for (size_t c = 0; c < plan.layout.length.size(); ++c)
    layout.insert(layout.end(), {plan.layout.length[c], plan.layout.input_offset[c], plan.layout.output_offset[c]});
  return {layout.data(), static_cast<int32_t>(plan.layout.length.size()), plan.tile_elements, plan.tiles};
}

cuda::Place place_of(const Location& at) { return {at.window < 0 ? cuda::Place::nowhere : at.window, at.offset}; }

void fill_common(const Run& run, int32_t rank, const Operation& op, cuda::CallArguments& a) {
  Device& device = *run.devices[static_cast<size_t>(rank)];
  a.size = run.world.size;
  a.first_rank = rank;
  a.ranks_here = 1;
  a.mailbox = run.mailbox;
  std::copy(run.mailboxes.begin(), run.mailboxes.end(), a.mailboxes);
  a.states = device.states.data();
  a.host = &device.host;
  a.claimed = &device.claimed;
  const Scaling& s = op.plan->scaling;
  a.scaling = {s.prescale, s.divisor, s.postscale, s.active() ? 1 : 0};
  a.digest = op.plan->fingerprint.count * 31u + static_cast<uint64_t>(op.plan->fingerprint.collective);
  a.timeout_ns = 60'000'000'000u;
  a.element = static_cast<int32_t>(op.plan->element);
}

int32_t words_of(const ScheduleView& table) {
  Step end = table.first();
  for (int32_t s = 0; s < table.steps(); ++s) end = end.next();
  return static_cast<int32_t>(end.words - table.words);
}

cuda::Arguments schedule_call(const Run& run, int32_t rank, const Operation& op) {
  Device& device = *run.devices[static_cast<size_t>(rank)];
  const Plan& plan = *op.plan;
  cuda::Arguments a{};
  a.tables[0] = {plan.schedule->view().words, nullptr, words_of(plan.schedule->view()), 0};
  if (op.fallback) {
    a.tables[0].fallback = op.fallback->schedule->view().words;
    a.tables[0].fallback_words = words_of(op.fallback->schedule->view());
  }
  fill_common(run, rank, op, a);
  a.windows = run.windows.data();
  a.plan = view_of(plan, device.layout);
  a.fallback = op.fallback ? view_of(*op.fallback, device.fallback_layout) : a.plan;
  a.negotiates = op.negotiates ? 1 : 0;
  a.placement = plan.fingerprint.placement;
  // A rank with private arrays has only the staged plan; the others must get the same number of channels.
  const int64_t tiles = op.negotiates ? 1 : std::min(a.plan.tiles, a.fallback.tiles);
  a.channels = op.negotiates ? static_cast<int32_t>(std::min<int64_t>(kChannels, (plan.layout.longest + 63) / 64))
                             : static_cast<int32_t>(std::min<int64_t>(kChannels, tiles));
  a.channels = std::max(a.channels, 1);
  a.buffers[0] = {op.input, op.output, place_of(op.input_at), place_of(op.output_at)};
  return a;
}

// What each pair of ranks exchanges, from the positions of the call's chunks.
cuda::Exchange exchange_of(const Case& c, int32_t rank, const Layout& layout) {
  cuda::Exchange e{};
  const int64_t whole = std::accumulate(layout.length.begin(), layout.length.end(), int64_t{0});
  const int32_t n = c.size;
  for (int32_t peer = 0; peer < n; ++peer) {
    const int32_t sent = c.row().block(rank, peer, n, c.root), received = c.row().block(peer, rank, n, c.root);
    const auto part = [&](int32_t chunk, const std::vector<int64_t>& offsets) {
      if (!c.in_blocks()) return std::pair{int64_t{0}, whole};
      const auto at = static_cast<size_t>(chunk);
      return std::pair{offsets[at], layout.length[at]};
    };
    if (sent >= 0) std::tie(e.send_offset[peer], e.send_count[peer]) = part(sent, layout.input_offset);
    if (received >= 0) std::tie(e.recv_offset[peer], e.recv_count[peer]) = part(received, layout.output_offset);
  }
  return e;
}

cuda::LowLatencyArguments packet_call(const Run& run, int32_t rank, const Case& c, const Operation& op) {
  Device& device = *run.devices[static_cast<size_t>(rank)];
  device.exchange = exchange_of(c, rank, op.plan->layout);
  cuda::LowLatencyArguments a{};
  fill_common(run, rank, op, a);
  a.exchanges = &device.exchange;
  a.buffers[0] = {op.input, op.output};
  const Layout& layout = op.plan->layout;
  const int64_t whole = std::accumulate(layout.length.begin(), layout.length.end(), int64_t{0});
  const int64_t run_bytes = cuda::kRun * cuda::kPacketBytes;
  a.dealt_to = cuda::kLowLatencyChannels;
  a.channels = static_cast<int32_t>(std::clamp<int64_t>((whole * 4 + run_bytes - 1) / run_bytes, 1, a.dealt_to));
  a.uniform = c.collective == Collective::allreduce ? whole : -1;
  return a;
}

class RankRun {
 public:
  RankRun(const Run& run, int32_t rank, bool packets)
      : run_(run),
        number_(rank),
        packets_(packets),
        channels_(packets ? cuda::kLowLatencyChannels : kChannels),
        rank_(run.world, rank),
        barrier_(channels_ * kThreads) {}

  void operator()() {
    std::vector<std::thread> others;
    for (int32_t t = 1; t < channels_ * kThreads; ++t) others.emplace_back([this, t] { serve(t); });
    serve(0);
    for (std::thread& other : others) other.join();
  }

 private:
  void serve(int32_t thread) {
    std::minstd_rand random(static_cast<uint32_t>(number_ * 100 + thread + 1));
    for_each_case(run_.cases, run_.repeats, [&](const std::vector<CallPlan>& calls) {
      for (const CallPlan& call : calls) one_call(call, thread, random);
    });
  }

  void one_call(const CallPlan& call, int32_t thread, std::minstd_rand& random) {
    if (thread == 0) {
      prepare(call);
      // Ranks drift apart by whole calls.
      if (random() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
    }
    barrier_.arrive_and_wait();
    if (random() % 16 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
    const int32_t channel = thread / kThreads, lane = thread % kThreads;
    if (channel < active_) launch(channel, lane);
    barrier_.arrive_and_wait();
    if (thread != 0) return;
    const cuda::HostWords& host = run_.devices[static_cast<size_t>(number_)]->host;
    if (host.fault != 0)
      give_up("rank " + std::to_string(number_) + " in " + call.c->name + ", call " + std::to_string(call.number) +
              ": fault " + std::to_string(host.fault) + " about rank " + std::to_string(host.record.peer));
    if (const std::string problem = rank_.check(call); !problem.empty()) give_up(problem);
  }

  void prepare(const CallPlan& call) {
    op_ = rank_.prepare(call);
    reduces_ = call.c->reduces();
    floats_ = call.arithmetic == Arithmetic::scaled_floats;
    if (packets_) low_latency_ = packet_call(run_, number_, *call.c, op_);
    else schedule_ = schedule_call(run_, number_, op_);
    active_ = packets_ ? low_latency_.channels : schedule_.channels;
    if (active_ > channels_) give_up("more channels than the test has threads for");
    blocks_.clear();
    for (int32_t b = 0; b < active_; ++b) blocks_.push_back(std::make_unique<pc_emulated::Block>(kThreads));
  }

  void launch(int32_t channel, int32_t lane) {
    pc_emulated::block = blocks_[static_cast<size_t>(channel)].get();
    pc_emulated::thread_index = static_cast<unsigned>(lane);
    pc_emulated::block_index = static_cast<unsigned>(channel);
    pc_emulated::block_dim = static_cast<unsigned>(kThreads);
    pc_emulated::turn = 0;
    using Floats = cuda::Elements<float, cuda::Fixed<Sum>>;
    using Integers = cuda::Elements<int32_t, cuda::Chosen<int32_t>>;
    const auto run = [&]<class E>(E*) {
      if (packets_) cuda::run_low_latency<E>(low_latency_);
      else cuda::run_schedule<E>(schedule_);
    };
    if (!reduces_) run(static_cast<cuda::Unreduced*>(nullptr));
    else if (floats_) run(static_cast<Floats*>(nullptr));
    else run(static_cast<Integers*>(nullptr));
  }

  const Run& run_;
  const int32_t number_;
  const bool packets_;
  const int32_t channels_;
  Rank rank_;
  std::barrier<> barrier_;
  Operation op_;
  bool reduces_ = false, floats_ = false;
  int32_t active_ = 1;
  cuda::Arguments schedule_{};
  cuda::LowLatencyArguments low_latency_{};
  std::vector<std::unique_ptr<pc_emulated::Block>> blocks_;
};

void run_all(const Run& run, bool packets) {
  std::vector<std::unique_ptr<RankRun>> ranks;
  for (int32_t r = 0; r < run.world.size; ++r) ranks.push_back(std::make_unique<RankRun>(run, r, packets));
  std::vector<std::thread> threads;
  for (const auto& rank : ranks) threads.emplace_back([&rank] { (*rank)(); });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace pc::test

int main(int argc, char** argv) {
  using namespace pc::test;
  return run_cases(argc, argv, [](const std::string& mode, std::vector<Case> cases, int repeats) {
    const bool packets = mode == "packets";
    if (packets)
      std::erase_if(cases, [](const Case& c) {
        return c.placement != 0 || c.row().is_message() || c.row().prefix != pc::Prefix::none;
      });
    run_all(Run(std::move(cases), repeats), packets);
  });
}
