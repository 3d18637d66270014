#include "rank.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/environment.h"
#include "check.h"

namespace pc::test {
namespace {

constexpr int32_t kGarbage = -987654;
constexpr int64_t kGuard = 16;  // elements after every array, which must not be touched

// Longer than two tiles, and not a whole number of them.
int64_t several_tiles() {
  const double tile = std::max(environment().tile_bytes, environment().staged_tile_bytes);
  return 2 * static_cast<int64_t>(tile) / 4 + 17;
}

// The contribution of `rank` to element `i` of the logical buffer.
int32_t contribution(const CallPlan& call, int32_t rank, int64_t i) {
  return static_cast<int32_t>((7 * i + 13 * call.number + 31 * rank) % 50) + rank;
}

void add(void* into, const void* from, int64_t count) {
  for (int64_t i = 0; i < count; ++i) static_cast<int32_t*>(into)[i] += static_cast<const int32_t*>(from)[i];
}

int32_t stored(Arithmetic arithmetic, double value) {
  if (arithmetic != Arithmetic::scaled_floats) return static_cast<int32_t>(value);
  return std::bit_cast<int32_t>(static_cast<float>(value));
}

double scale_of(const CallPlan& call) {
  return call.arithmetic == Arithmetic::scaled_floats && call.c->reduces() ? 2.0 * 0.25 : 1.0;
}

// The result on `rank` at element `i` of the logical buffer, which is in `chunk`.
int32_t expected(const CallPlan& call, int32_t rank, int32_t chunk, int64_t i) {
  double sum = 0;
  for (int32_t r = 0; r < call.c->size; ++r)
    if (call.c->starts(r, chunk) && call.c->row().contributes(r, rank)) sum += contribution(call, r, i);
  return stored(call.arithmetic, sum * scale_of(call));
}

// The start of each chunk in the logical buffer.
std::vector<int64_t> begins(const Layout& layout) {
  std::vector<int64_t> begin(layout.length.size(), 0);
  std::partial_sum(layout.length.begin(), layout.length.end() - 1, begin.begin() + 1);
  return begin;
}

int64_t total(const Layout& layout) { return std::accumulate(layout.length.begin(), layout.length.end(), int64_t{0}); }

}  // namespace

void use_small_tiles() {
  setenv("PYCOLLECTIVE_TILE", "256", 0);
  setenv("PYCOLLECTIVE_STAGED_TILE", "128", 0);
}

void give_up(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::fflush(stderr);
  std::_Exit(1);
}

int run_cases(int argc, char** argv, const RunCases& run) {
  if (argc < 3) give_up("MODE SCHEDULES [ONLY [REPEATS]]");
  use_small_tiles();
  try {
    auto cases = read_cases(argv[2], argc > 3 ? argv[3] : "");
    std::printf("%s: %zu schedules on %d ranks\n", argv[1], cases.size(), cases[0].size);
    run(argv[1], std::move(cases), argc > 4 ? std::atoi(argv[4]) : 1);
  } catch (const std::exception& error) {
    give_up(error.what());
  }
  return 0;
}

std::vector<CallPlan> calls_of(const Case& c, uint32_t first) {
  const int64_t several = several_tiles();
  const bool staged = c.placement == 0;
  std::vector<CallPlan> calls{
      {&c, Arithmetic::integers, several, false, false, 0},
      {&c, Arithmetic::custom, 1, false, false, 0},
      {&c, Arithmetic::scaled_floats, several / 2, staged && c.row().in_place != InPlace::never, false, 0},
      {&c, Arithmetic::integers, 0, false, false, 0},
      {&c, Arithmetic::custom, several, false, false, 0}};
  if (!staged && !c.staged.empty()) calls.push_back({&c, Arithmetic::integers, several, false, true, 0});
  for (CallPlan& call : calls) call.number = first++;
  return calls;
}

int64_t array_bytes_for(const std::vector<Case>& cases) {
  int32_t chunks = 1;
  for (const Case& c : cases) chunks = std::max(chunks, c.chunks());
  const int64_t elements =
      2 * (chunks * (several_tiles() + 16) + kGuard);  // in place, one array begins inside the other
  return (4 * elements + 63) / 64 * 64;
}

World::World(int32_t size, int64_t array_bytes)
    : size(size),
      array_bytes(array_bytes),
      control(create_segment("local", Team::segment_bytes(size, kScratch))),
      windows(create_segment("local", static_cast<size_t>(2 * kSlots * array_bytes * size))) {}

Rank::Rank(const World& world, int32_t rank, bool threads)
    : team(world.control, rank, world.size, World::kScratch, Team::all_of(world.size), "test", threads,
           Team::all_of(world.size), {}),
      world_(world),
      private_(2 * World::kSlots * world.array_bytes) {
  const int64_t part = World::kSlots * world.array_bytes;
  team.add_window(0, {world.windows->data(), part, part});                      // inputs
  team.add_window(1, {world.windows->data() + world.size * part, part, part});  // outputs
}

char* Rank::window(int64_t slot, bool output) const {
  const int64_t part = World::kSlots * world_.array_bytes;
  return world_.windows->data() + ((output ? world_.size : 0) + team.rank()) * part + slot * world_.array_bytes;
}

char* Rank::private_array(int64_t slot, bool output) const {
  return private_.data() + (2 * slot + (output ? 1 : 0)) * world_.array_bytes;
}

uint8_t Rank::placement(const CallPlan& call) const {
  const bool odd =
      call.odd_one && static_cast<int32_t>(call.number % static_cast<uint32_t>(world_.size)) == team.rank();
  return odd ? 0 : call.c->placement;
}

bool Rank::one_array(const CallPlan& call) const { return call.c->is(in_place) || call.same_array; }

// In place, a rank's own block of the longer array is the shorter array.
Rank::Buffers Rank::place(const CallPlan& call, const Layout& layout) const {
  const Case& c = *call.c;
  const int64_t slot = call.number % World::kSlots;
  const uint8_t at = placement(call);
  if (!one_array(call))
    return {(at & input_shared) != 0 ? window(slot, false) : private_array(slot, false),
            (at & output_shared) != 0 ? window(slot, true) : private_array(slot, true)};
  char* base = at != 0 ? window(slot, true) : private_array(slot, true);
  int64_t shift = 0;
  if (c.row().split == Split::ranks) shift = (layout.output_offset[team.rank()] - layout.input_offset[team.rank()]) * 4;
  return {base + std::max<int64_t>(shift, 0), base + std::max<int64_t>(-shift, 0)};
}

std::shared_ptr<const Plan> Rank::make_plan(const CallPlan& call, uint8_t placement) const {
  const Case& c = *call.c;
  auto plan = std::make_shared<Plan>();
  plan->schedule = placement == c.placement ? c.ranks[team.rank()] : c.staged[team.rank()];
  plan->layout = layout_for(c, call.longest);
  const bool floats = call.arithmetic == Arithmetic::scaled_floats;
  Fingerprint& print = plan->fingerprint;
  print.count = total(plan->layout);
  print.root = c.row().rooted ? c.root : -1;
  print.collective = c.collective;
  print.dtype = floats ? Dtype::float32 : Dtype::int32;
  print.placement = placement;
  c.name.copy(print.topology, sizeof print.topology - 1);
  plan->element = 4;
  if (c.reduces()) {
    plan->kernel = kernel_for(print.dtype, Operator::sum);
    if (floats) plan->scaling = {2.0, 1.0, 0.25};
    if (call.arithmetic == Arithmetic::custom) plan->custom = add;
  }
  plan->finish(team.capacity());
  return plan;
}

void Rank::fill(const CallPlan& call, const Layout& layout, Buffers at) const {
  const int64_t extent = total(layout) + kGuard;
  std::fill_n(reinterpret_cast<int32_t*>(at.output), extent, kGarbage);
  if (at.input != at.output) std::fill_n(reinterpret_cast<int32_t*>(at.input), extent, kGarbage);
  const auto begin = begins(layout);
  for (int32_t k = 0; k < call.c->chunks(); ++k) {
    if (!call.c->starts(team.rank(), k)) continue;
    int32_t* into = reinterpret_cast<int32_t*>(at.input) + layout.input_offset[k];
    for (int64_t e = 0; e < layout.length[k]; ++e)
      into[e] = stored(call.arithmetic, contribution(call, team.rank(), begin[k] + e));
  }
}

Operation Rank::prepare(const CallPlan& call) {
  const uint8_t mine = placement(call);
  Operation op;
  op.plan = make_plan(call, mine);
  if (mine != 0 && !call.c->staged.empty()) op.fallback = make_plan(call, 0);
  op.negotiates = call.c->placement != 0;
  const Buffers at = place(call, op.plan->layout);
  fill(call, op.plan->layout, at);
  op.input = at.input;
  op.output = at.output;
  if ((mine & input_shared) != 0) op.input_at = team.locate(at.input, 1);
  if ((mine & output_shared) != 0) op.output_at = team.locate(at.output, 1);
  op.timeout = std::chrono::seconds(60);
  return op;
}

std::string Rank::check(const CallPlan& call) const {
  const Case& c = *call.c;
  const Layout layout = layout_for(c, call.longest);
  const Buffers at = place(call, layout);
  const auto begin = begins(layout);
  const auto* output = reinterpret_cast<const int32_t*>(at.output);
  const auto* input = reinterpret_cast<const int32_t*>(at.input);
  const auto where = [&](int32_t chunk, int64_t e) {
    return text(c.name, ", rank ", team.rank(), ", call ", call.number, ", chunk ", chunk, ", element ", e, ": ");
  };
  int64_t end = 0;
  for (int32_t k = 0; k < c.chunks(); ++k) {
    for (int64_t e = 0; e < layout.length[k]; ++e) {
      if (c.ends(team.rank(), k)) {
        const int32_t got = output[layout.output_offset[k] + e], wanted = expected(call, team.rank(), k, begin[k] + e);
        if (got != wanted) return text(where(k, e), "is ", got, ", not ", wanted);
      }
      if (!one_array(call) && c.starts(team.rank(), k)) {
        const int32_t now = input[layout.input_offset[k] + e];
        const int32_t before = stored(call.arithmetic, contribution(call, team.rank(), begin[k] + e));
        if (now != before) return text(where(k, e), "the input became ", now);
      }
    }
    if (c.ends(team.rank(), k)) end = std::max(end, layout.output_offset[k] + layout.length[k]);
  }
  if (!one_array(call))
    for (int64_t e = end; e < end + kGuard; ++e)
      if (output[e] != kGarbage)
        return text(c.name, ", rank ", team.rank(), ": element ", e, " after the output was touched");
  return {};
}

}  // namespace pc::test
