// A rank's lanes on the CPU: the Group that execute.h expects.
#pragma once

#include <algorithm>

#include "executor/cpu/team.h"

namespace pc {

// One thread runs the rank.
struct SingleLane {
  static constexpr int lane() { return 0; }
  static constexpr int width() { return 1; }
  static bool all(bool ok) { return ok; }
};

// `general`: whether ranks may be on several hosts, or the arrays in device memory.
template <class Lanes, bool general = true>
class CpuGroup {
 public:
  static constexpr bool kMessages = general;
  CpuGroup(Team& team, Operation& op, Lanes lanes = {}) : team_(team), op_(op), plan_(*op.plan), lanes_(lanes) {}

  int lane() const { return lanes_.lane(); }
  static constexpr int pollers() { return 1; }
  int width() const { return lanes_.width(); }
  bool all(bool ok) { return lanes_.all(ok); }

  void enter(uint64_t base, bool at_once) {
    if (lane() != 0) return;
    team_.announce(op_);
    if (at_once) team_.publish(op_, base);
  }

  // All peers poll the same counter.
  void publish(uint64_t value, const Step& step, bool last) {
    if (lane() == 0 && (last || !plan_.ahead || !is_published_next(step))) team_.publish(op_, value);
  }

  bool await(int32_t peer, uint64_t target) {
    return reached({peer, target}) && (team_.checked_[peer] == op_.sequence || team_.check_call(op_, peer));
  }

  // Has the peer left the handshake of the call that it entered at `base`?
  bool await_exit(int32_t peer, uint64_t base) { return reached({peer, base + 1}); }

  // Has the peer, on another host, sent the placement of its host's ranks?
  bool await_placement(int32_t peer) {
    const Goal goal{peer, op_.sequence, false, nullptr, true};
    const bool arrived = team_.arrived(goal) || team_.await_slow(op_, goal);
    return arrived && (team_.checked_[peer] == op_.sequence || team_.check_call(op_, peer));
  }

  uint32_t slot(const Span& span, int64_t tile) const {
    return (span.slot + static_cast<uint32_t>(tile) * plan_.slot_segments) & (plan_.slot_turn - 1);
  }

  bool guard(uint32_t slot) {
    if (lane() != 0) return true;
    for (uint32_t segment = slot; segment < slot + plan_.slot_segments; ++segment) {
      uint64_t* const targets = team_.scratch_.readers_of(segment);
      for (int32_t peer = 0; peer < team_.size(); ++peer) {
        if (targets[peer] == 0) continue;
        const bool sent = general && team_.spans_hosts_ && team_.remote(peer) != nullptr;
        if (!reached({peer, targets[peer], sent})) return false;
        targets[peer] = 0;
      }
    }
    return true;
  }

  void hold(uint32_t slot, int32_t peer, uint64_t target) {
    for (uint32_t segment = slot; segment < slot + plan_.slot_segments; ++segment)
      team_.scratch_.readers_of(segment)[peer] = target;
  }

  bool open(int64_t tile, uint32_t slot) {
    if constexpr (general) {
      if (staging_ != nullptr && !stage(tile)) return false;
      if (team_.spans_hosts_)
        for (const Step& step : plan_.schedule->early_receives()) post(step, tile, slot);
    }
    return true;
  }

  void post(const Step& step, int64_t tile, uint32_t slot) {
    if (lane() != 0) return;
    const Source from = step.source(0);
    const Target target = step.target(0);
    const int64_t begin = tile * plan_.tile_elements, count = elements(step.chunk(), begin);
    char* const into = count > 0 ? place(target.rank, target.place, step.chunk(), begin, 0, slot) : nullptr;
    team_.remote(from.rank)->post(value(tile, from.place), into, static_cast<uint64_t>(count) * plan_.element);
  }

  void combine(const Step& step, int64_t tile, uint32_t slot) {
    if constexpr (general) {
      if (staging_ != nullptr) staging_->advance(op_.cursor.tile);
      if (step.is_message()) {
        if (step.sends() && all(true) && lane() == 0) send(step, tile, slot);
        return;
      }
    }
    const int32_t chunk = step.chunk();
    const int64_t begin = tile * plan_.tile_elements, count = elements(chunk, begin);
    if (count == 0) return;
    const int64_t share = (count + width() - 1) / width();
    const int64_t skip = std::min<int64_t>(count, share * lane());
    const int64_t mine = std::min<int64_t>(share, count - skip);
    const auto since = team_.trace != nullptr ? Clock::now() : Clock::time_point{};
    if (mine > 0) combine_share(step, begin, skip, mine, slot);
    if (team_.trace != nullptr && lane() == 0) note(step, tile, since);
  }

  int32_t exits(const ScheduleView& s) const { return plan_.ahead ? 0 : s.exit_waits(); }

  Status failure() const {
    return op_.waiting == Waiting::blocks || team_.given_up(op_) ? Status::failed : Status::pending;
  }

 private:
  // Waits until the tile's part of arrays in device memory can be accessed.
  bool stage(int64_t tile) {
    if (!staging_->begun()) staging_->begin(plan_);
    return staging_->ready(tile) || team_.await_slow(op_, {team_.rank(), static_cast<uint64_t>(tile), false, staging_});
  }

  bool reached(const Goal& goal) {
    if (!goal.sent && team_.control_.block(goal.peer).counter.load(kAcquire) >= goal.target) return true;
    return team_.await_slow(op_, goal);
  }

  // Elements of a chunk in a tile that begins at this element of it.
  int64_t elements(int32_t chunk, int64_t begin) const {
    return std::max<int64_t>(0, std::min(plan_.tile_elements, plan_.layout.length[chunk] - begin));
  }

  uint64_t value(int64_t iteration, int32_t count) const {
    return op_.span.base + static_cast<uint64_t>(iteration) * plan_.schedule->view().stride() + count;
  }

  // Also without elements: the arrival of the message is what its receiver waits for.
  void send(const Step& step, int64_t tile, uint32_t slot) {
    const Source from = step.source(0);
    const int64_t begin = tile * plan_.tile_elements;
    const auto bytes = static_cast<uint64_t>(elements(step.chunk(), begin)) * plan_.element;
    const void* data = bytes > 0 ? place(from.rank, from.place, step.chunk(), begin, 0, slot) : nullptr;
    for (int32_t i = 0; i < step.targets(); ++i) {
      const int32_t peer = step.target(i).rank;
      Remote& to = *team_.remote(peer);
      to.send(op_, value(op_.cursor.tile, op_.cursor.position + 1), op_.digest, data, bytes, is_followed(step, peer));
      if (from.place >= 0) hold(slot, peer, to.posted());
      else if (staging_ != nullptr) staging_->hold(tile, to, to.posted());
    }
  }

  // Whether the next step, without waiting, sends to this rank too.
  bool is_followed(const Step& step, int32_t peer) const {
    if (op_.cursor.position + 1 >= plan_.schedule->view().steps()) return false;
    const Step next = step.next();
    const bool at_once = next.sends() && next.waits() == 0 && next.lag() == step.lag();
    return at_once && next.targets() == 1 && next.target(0).rank == peer;
  }

  // Whether the next step, without waiting, publishes this one too.
  static bool is_published_next(const Step& step) {
    const Step next = step.next();
    return next.waits() == 0 && next.consumed();
  }

  void note(const Step& step, int64_t tile, Clock::time_point since) const {
    const auto ns = [](Clock::time_point at) { return static_cast<int64_t>(at.time_since_epoch().count()); };
    TracedStep traced{ns(since), ns(Clock::now()), step.chunk(), tile, {}, {}, 0, {}, {}};
    traced.value = value(tile, op_.cursor.position + 1);
    for (int32_t i = 0; i < step.sources(); ++i) traced.sources.push_back(step.source(i).rank);
    for (int32_t i = 0; i < step.targets(); ++i) traced.targets.push_back(step.target(i).rank);
    for (int32_t i = 0; i < step.consumers(); ++i) traced.consumers.push_back(step.consumer(i));
    for (int32_t i = 0; i < step.waits(); ++i) {
      const Wait wait = step.wait(i);
      if (wait.count > 0) traced.waits.push_back({wait.peer, value(tile, wait.count)});
    }
    team_.trace->push_back(std::move(traced));
  }

  char* place(int32_t rank, int32_t place, int32_t chunk, int64_t begin, int64_t skip, uint32_t slot) const {
    const int64_t element = static_cast<int64_t>(plan_.element);
    if (place >= 0) {
      if (plan_.near_cell > 0)
        return team_.control_.block(rank).near_cells[slot] + place * plan_.near_cell + skip * element;
      return team_.scratch_.at(rank, slot) + (place * plan_.tile_elements + skip) * element;
    }
    const bool own = rank == team_.rank();
    if (general && own && staging_ != nullptr) return staging_->place(place == kPlaceInput, chunk, begin, skip);
    if (place == kPlaceInput) {
      char* base = own ? static_cast<char*>(const_cast<void*>(op_.input)) : team_.peer_input_[rank];
      return base + (plan_.layout.input_offset[chunk] + begin + skip) * element;
    }
    char* base = own ? static_cast<char*>(op_.output) : team_.peer_output_[rank];
    return base + (plan_.layout.output_offset[chunk] + begin + skip) * element;
  }

  void combine_share(const Step& step, int64_t begin, int64_t skip, int64_t mine, uint32_t slot) {
    const void* sources[kMostOperands];
    bool initial[kMostOperands];
    void* targets[kMostOperands];
    const int32_t k = step.sources(), m = step.targets(), chunk = step.chunk();
    for (int32_t i = 0; i < k; ++i) {
      const Source s = step.source(i);
      sources[i] = place(s.rank, s.place, chunk, begin, skip, slot);
      initial[i] = s.initial != 0;
    }
    for (int32_t i = 0; i < m; ++i) {
      const Target t = step.target(i);
      targets[i] = place(t.rank, t.place, chunk, begin, skip, slot);
    }
    const auto count = static_cast<size_t>(mine);
    Block block{sources, initial, targets, k, m, count, step.complete(), &plan_.scaling, plan_.custom};
    if (step.weighted()) combine_weighted(step, block);
    else combine_block(step, block);
  }

  [[gnu::noinline]] void combine_weighted(const Step& step, Block& block) {
    double weights[kMostOperands];
    for (int32_t i = 0; i < block.k; ++i) weights[i] = step.weight(i);
    block.weights = weights;
    combine_block(step, block);
  }

  void combine_block(const Step& step, Block& block) {
    const auto bytes = static_cast<int64_t>(block.count * plan_.element);
    if (bytes >= SharedWrites::kLeast || plan_.streams) combine_large(step, block, bytes);
    else plan_.combine(block);
  }

  // Chooses which targets are written past the caches, and times writes to cells.
  [[gnu::noinline]] void combine_large(const Step& step, Block& block, int64_t bytes) {
    bool streamed[kMostOperands];
    bool any = false, has_cells = false, stream_cells = false;
    for (int32_t i = 0; i < block.m; ++i) {
      const int32_t place = step.target(i).place;
      if (place >= 0 && !has_cells) {
        has_cells = true;
        stream_cells = bytes >= SharedWrites::kLeast && team_.shared_writes_.stream();
      }
      streamed[i] = place >= 0 ? stream_cells : plan_.streams && place == kPlaceOutput;
      any = any || streamed[i];
    }
    if (any) block.streamed = streamed;
    const bool copies_to_cells = has_cells && bytes >= SharedWrites::kLeast && block.k == 1 && block.weights == nullptr;
    if (!copies_to_cells || step.source(0).rank != team_.rank() || lane() != 0) return plan_.combine(block);
    const auto since = Clock::now();
    plan_.combine(block);
    const int64_t slow_line = block.m > 1 ? SharedWrites::kSlowTwo : SharedWrites::kSlow;
    team_.shared_writes_.record(bytes, Clock::now() - since, stream_cells, slow_line);
  }

  Team& team_;
  Operation& op_;
  const Plan& plan_;
  Staging* const staging_ = general ? op_.staging.get() : nullptr;  // of arrays in device memory: one lane
  Lanes lanes_;
};

}  // namespace pc
