#include "engine/fused.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <mutex>
#include <utility>

#include "base/environment.h"

namespace pc::engine {
namespace {

void copy_past_caches(char* into, const char* from, int64_t bytes) {
  static constexpr Scaling unscaled;
  const void* source = from;
  void* target = into;
  const bool initial = true, streamed = true;
  copy_block({&source, &initial, &target, 1, 1, static_cast<size_t>(bytes), true, &unscaled, nullptr, &streamed}, 1);
}

// `cold`: the target is not in the caches, and fetching it before overwriting it is useless.
void copy_out(char* into, const char* from, int64_t bytes, bool cold) {
  constexpr int64_t least = 64 << 10;  // bytes that are worth a fence
  if (cold && bytes >= least) copy_past_caches(into, from, bytes);
  else copy_bytes(into, from, static_cast<size_t>(bytes));
}

// To memory that peers have read.
void copy_in(char* into, const char* from, int64_t bytes, SharedWrites& writes) {
  if (bytes < SharedWrites::kLeast) return copy_bytes(into, from, static_cast<size_t>(bytes));
  const bool streamed = writes.stream();
  const auto since = Clock::now();
  if (streamed) copy_past_caches(into, from, bytes);
  else copy_bytes(into, from, static_cast<size_t>(bytes));
  writes.record(bytes, Clock::now() - since, streamed, SharedWrites::kSlowFromMemory);
}

}  // namespace

// Iterates over the pieces as over one buffer.
class FusedAllreduce::Walk {
 public:
  explicit Walk(const std::vector<Piece>& pieces) : piece_(pieces.begin()) {}

  // Calls move(piece, offset in it, offset in the part, bytes) for the next `bytes` bytes.
  template <class Move>
  void part(int64_t bytes, const Move& move) {
    for (int64_t done = 0; done < bytes;) {
      const int64_t step = std::min(bytes - done, piece_->bytes - offset_);
      if (step > 0) move(*piece_, offset_, done, step);
      done += step;
      offset_ += step;
      if (offset_ == piece_->bytes) {
        ++piece_;
        offset_ = 0;
      }
    }
  }

 private:
  std::vector<Piece>::const_iterator piece_;
  int64_t offset_ = 0;
};

FusedAllreduce::FusedAllreduce(std::shared_ptr<Team> team, PlanMaker maker, char* buffer, int64_t bytes,
                               int32_t buffers, Timeline& timeline)
    : team_(std::move(team)),
      maker_(std::move(maker)),
      buffer_(buffer),
      buffers_(buffers),
      tile_bytes_(team_->spans_hosts() ? 0 : bytes / buffers / 64 * 64),
      timeline_(timeline) {}

void FusedAllreduce::run(const Reduction& reduction, std::vector<Piece> pieces, bool everybody) {
  const auto packed = std::partition(pieces.begin(), pieces.end(), [](const Piece& p) { return p.place >= 0; });
  std::vector<Piece> others(packed, pieces.end());
  pieces.erase(packed, pieces.end());
  run_in_windows(reduction, pieces);
  // The executor stages a single array as well, and with one copy less.
  if (others.size() == 1 && everybody && others[0].bytes > 0)
    reduce(reduction, others[0].input, others[0].output, others[0].bytes, false, {});
  else run_packed(reduction, others);
}

// Adjacent pieces are merged: their order in memory is the same on all ranks.
void FusedAllreduce::run_in_windows(const Reduction& reduction, std::vector<Piece>& pieces) {
  std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) { return a.place < b.place; });
  for (auto first = pieces.begin(); first != pieces.end();) {
    int64_t bytes = first->bytes;
    auto next = std::next(first);
    for (; next != pieces.end() && next->place == first->place + bytes; ++next) bytes += next->bytes;
    if (bytes > 0) reduce(reduction, first->output, first->output, bytes, bytes > kAlwaysStaged, {});
    first = next;
  }
}

// Tiles are packed ahead while peers have not arrived, as far as there are buffers.
void FusedAllreduce::run_packed(const Reduction& reduction, const std::vector<Piece>& pieces) {
  int64_t total = 0;
  for (const Piece& piece : pieces) total += piece.bytes;
  if (total == 0) return;
  if (team_->spans_hosts() && total > tile_bytes_) {
    room_.resize(static_cast<size_t>(total));
    buffer_ = room_.data();
    tile_bytes_ = total;
  }
  const int64_t tiles = (total + tile_bytes_ - 1) / tile_bytes_;
  const auto bytes_of = [&](int64_t tile) { return std::min(tile_bytes_, total - tile * tile_bytes_); };
  const auto buffer_of = [this](int64_t tile) { return buffer_ + tile % buffers_ * tile_bytes_; };
  Walk in(pieces), out(pieces);
  int64_t packed = 0;
  const auto pack_next = [&] {
    pack(in, buffer_of(packed), bytes_of(packed));
    ++packed;
  };
  for (int64_t tile = 0; tile < tiles; ++tile) {
    if (packed == tile) pack_next();
    reduce(reduction, buffer_of(tile), buffer_of(tile), bytes_of(tile), bytes_of(tile) > kAlwaysStaged, [&] {
      if (packed == tiles || packed == tile + buffers_) return false;
      pack_next();
      return true;
    });
    unpack(out, buffer_of(tile), bytes_of(tile));
  }
}

void FusedAllreduce::pack(Walk& walk, char* buffer, int64_t bytes) {
  auto span = timeline_.span(Phase::pack);
  walk.part(bytes, [this, buffer](const Piece& piece, int64_t from, int64_t to, int64_t count) {
    if (piece.input != nullptr) copy_in(buffer + to, piece.input + from, count, team_->shared_writes());
    else std::memset(buffer + to, 0, static_cast<size_t>(count));
  });
  span.end();
}

void FusedAllreduce::unpack(Walk& walk, const char* buffer, int64_t bytes) {
  auto span = timeline_.span(Phase::unpack);
  walk.part(bytes, [buffer](const Piece& piece, int64_t to, int64_t from, int64_t count) {
    if (piece.output != nullptr) copy_out(piece.output + to, buffer + from, count, piece.output != piece.input);
  });
  span.end();
}

// On one host in place in a window if `shared`, the same on all ranks; otherwise wherever the ranks' arrays are.
// `meanwhile`: work to do while peers have not arrived; false: nothing left.
void FusedAllreduce::reduce(const Reduction& reduction, const char* input, char* output, int64_t bytes, bool shared,
                            const std::function<bool()>& meanwhile) {
  const auto element = static_cast<int64_t>(size_of(reduction.dtype));
  Operation operation;
  const bool across = team_->spans_hosts();
  if (shared && !across) operation.input_at = operation.output_at = team_->locate(output, bytes);
  operation.plan = plan_for(reduction, bytes / element, shared && !across);
  const bool may_negotiate = across ? team_->has_windows() : !shared;
  if (may_negotiate && team_->uses_windows(operation.plan->fingerprint.collective, bytes)) {
    const Location at = input == output ? team_->place(output, bytes) : Location();
    operation.negotiates = across || at.found();
    if (at.found()) {
      operation.input_at = operation.output_at = at;
      operation.fallback = std::exchange(operation.plan, plan_for(reduction, bytes / element, true));
    }
  }
  operation.input = input;
  operation.output = output;
  operation.timeout = std::chrono::duration<double>(environment().timeout);
  const std::lock_guard turn(team_->one_call);
  Status status = Status::pending;
  while (meanwhile && (status = team_->advance(operation)) == Status::pending && meanwhile()) {
  }
  auto span = timeline_.span(across ? Phase::between_hosts : Phase::reduce);
  if (status == Status::pending) team_->run(operation);
  span.end();
}

// Plans are reused for similar sizes: making one calls Python.
std::shared_ptr<const Plan> FusedAllreduce::plan_for(const Reduction& reduction, int64_t count, bool shared) {
  const Key key{reduction, count, shared};
  if (const auto* found = plans_.find(key)) return *found;
  const Key about{reduction, static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(count))), shared};
  const auto* found = models_.find(about);
  const std::shared_ptr<const Plan> model =
      found != nullptr ? *found : models_.insert(about, maker_(reduction, std::get<1>(about), shared));
  auto plan = std::make_shared<Plan>(*model);
  plan->fingerprint.count = count;
  plan->layout = Layout::split(count, plan->schedule->view().chunks(),
                               std::max<int64_t>(1, 64 / static_cast<int64_t>(plan->element)));
  plan->finish(team_->capacity(), team_->tile_bytes);
  return plans_.insert(key, plan);
}

}  // namespace pc::engine
