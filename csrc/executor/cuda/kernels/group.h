// A thread block that runs one channel of one rank: the Group that execute.h expects.
#pragma once

#include "base/status.h"
#include "executor/cuda/kernels/combine.h"
#include "executor/cuda/kernels/patience.h"
#include "executor/execute.h"

namespace pc::cuda {

// State shared by the threads of a block.
struct BlockState {
  Operands operands[2];  // used alternately: one barrier per step suffices
  char* input[kMostRanks];
  char* output[kMostRanks];
  // The plan, if it fits: every step reads it, and would wait for global memory several times.
  static constexpr int32_t kWords = 2048, kChunks = 64;
  int32_t table[kWords];
  int64_t layout[3 * kChunks];
};

template <class E>
class CudaGroup {
 public:
  // `member`: index among the ranks of this launch.
  PC_FN CudaGroup(const Arguments& a, BlockState& block, int32_t member, int32_t channel)
      : a_(a),
        block_(block),
        elements_(a.op, a.scaling),
        member_(member),
        rank_(a.first_rank + member),
        channel_(channel),
        state_(a.states + int64_t{member} * a.mailbox.channels + channel),
        base_(state_->base),
        call_(state_->calls + 1),
        plan_(a.plan) {}

  PC_FN int32_t lane() const { return static_cast<int32_t>(thread_index()); }
  PC_FN int32_t width() const { return static_cast<int32_t>(thread_count()); }
  PC_FN int32_t pollers() const { return width(); }
  PC_FN bool all(bool ok) { return barrier_and(ok); }
  PC_FN Status failure() const { return Status::failed; }
  PC_FN void enter(uint64_t, bool) {}  // done by begin()

  // Enters the call and, if arrays may be in windows, waits for all peers.  False: a peer is missing or mismatched.
  PC_FN bool begin(ScheduleView& table, Span& span) {
    announce();
    const RankTables& tables = a_.tables[member_];
    table = fetch(tables.table, tables.words);
    if (a_.negotiates == 0) {
      barrier();
    } else {
      bool same_placement = true;
      int32_t unknown = -1;
      if (!all(meet_everybody(same_placement, unknown))) return false;
      if (all(same_placement)) {
        if (!all(unknown < 0 || complain_of(unknown))) return false;
      } else if (tables.fallback != nullptr) {
        plan_ = a_.fallback;
        table = fetch(tables.fallback, tables.fallback_words);
        barrier();
      }
    }
    stride_ = static_cast<uint64_t>(table.stride());
    const int64_t tiles = (plan_.tiles - channel_ + a_.channels - 1) / a_.channels;
    span = {base_, tiles > 0 ? tiles : 1, static_cast<uint32_t>(state_->slot)};  // an empty tile is ordinary
    return true;
  }

  // The state for the next call.  Runs after the last barrier: it is not read any more.
  PC_FN void finish(const ScheduleView& table, const Span& span) {
    if (lane() != 0) return;
    state_->base = base_ + static_cast<uint64_t>(span.tiles) * stride_ + 1;
    state_->calls = call_;
    if (table.cells() > 0) state_->slot = (span.slot + static_cast<uint64_t>(span.tiles)) & 1u;
  }

  PC_FN bool await(int32_t peer, uint64_t target) {
    const uint64_t* flag = counter(rank_, peer);
    Patience patience(a_.host, a_.claimed, a_.timeout_ns);
    DeviceFault fault = DeviceFault::none;
    for (;;) {
      const uint64_t value = load_flag(flag, a_.gpu_scope != 0);
      if (value >= target) break;
      if (!patience.keeps_waiting(fault)) {
        patience.report(fault, {rank_, peer, channel_, 0, call_, target, value, base_});
        return false;
      }
    }
    // Waits for earlier calls do not concern this one; after the first tile the peer has been checked.
    return target < base_ || target > base_ + stride_ || same_call(peer);
  }

  // Each thread notifies one consumer: they all release what the block wrote before the barrier.
  PC_FN void publish(uint64_t value, const Step& step, bool /*last*/) {
    for (int32_t i = lane(); i < step.consumers(); i += width())
      store_flag(counter(step.consumer(i), rank_), value, a_.gpu_scope != 0);
  }

  PC_FN static int32_t exits(const ScheduleView& s) { return s.exit_waits(); }
  PC_FN static uint32_t slot(const Span& span, int64_t tile) { return (span.slot + static_cast<uint32_t>(tile)) & 1u; }

  PC_FN bool guard(uint32_t slot) {
    for (int32_t peer = lane(); peer < a_.size; peer += width()) {
      const uint64_t target = state_->guard[slot][peer];
      if (target == 0) continue;
      if (!await(peer, target)) return false;
      state_->guard[slot][peer] = 0;
    }
    return true;
  }

  // Read in guard() by another thread, but after a tile's barriers.
  PC_FN void hold(uint32_t slot, int32_t peer, uint64_t target) { state_->guard[slot][peer] = target; }

  static constexpr bool kMessages = false;
  PC_FN constexpr bool open(int64_t, uint32_t) { return true; }

  PC_FN void combine(const Step& step, int64_t tile, uint32_t slot) {
    const int32_t chunk = step.chunk();
    const int64_t begin = (tile * a_.channels + channel_) * plan_.tile_elements;
    const int64_t left = plan_.layout[3 * chunk] - begin;
    const int64_t count = left < plan_.tile_elements ? left : plan_.tile_elements;
    if (count <= 0) return;
    Operands& o = block_.operands[turn_];
    turn_ ^= 1;
    const bool aligned = all(gather(o, step, begin, slot));
    const Threads threads{lane(), width()};
    if constexpr (std::is_same_v<E, Unreduced>) {
      copy_block(o, count, a_.element, aligned, threads);
    } else {
      const bool changes = a_.scaling.active != 0 || a_.normalises != 0;
      if (o.k > 1 || step.weighted() || (o.complete && changes)) combine_block(elements_, o, count, aligned, threads);
      else copy_block<sizeof(typename E::Element)>(o, count, aligned, threads);
    }
  }

 private:
  PC_FN uint64_t* counter(int32_t owner, int32_t from) const {
    return reinterpret_cast<uint64_t*>(a_.mailboxes[owner] + a_.mailbox.counters() +
                                       int64_t{64} * (channel_ * a_.size + from));
  }
  PC_FN Entry* entry(int32_t owner, int32_t from) const {
    const int64_t at = (int64_t{channel_} * a_.size + from) * kRing + static_cast<int64_t>(call_ % kRing);
    return reinterpret_cast<Entry*>(a_.mailboxes[owner] + a_.mailbox.entries()) + at;
  }

  // Copies the plan to shared memory; it can be used after a barrier.
  PC_FN ScheduleView fetch(const int32_t* table, int32_t words) {
    if (plan_.chunks <= BlockState::kChunks) {
      for (int32_t i = lane(); i < 3 * plan_.chunks; i += width()) block_.layout[i] = plan_.layout[i];
      plan_.layout = block_.layout;
    }
    if (words > BlockState::kWords) return {table};
    for (int32_t i = lane(); i < words; i += width()) block_.table[i] = table[i];
    return {block_.table};
  }

  PC_FN void announce() {
    const auto& mine = a_.buffers[member_];
    for (int32_t peer = lane(); peer < a_.size; peer += width()) {
      if (peer == rank_) continue;
      *entry(peer, rank_) = {call_, a_.digest, mine.input_at, mine.output_at, a_.placement, 0};
      store_flag(counter(peer, rank_), base_, a_.gpu_scope != 0);
    }
  }

  // `same_placement`: as this rank's; `unknown`: a peer whose array is in a window that this rank has dropped.
  PC_FN bool meet_everybody(bool& same_placement, int32_t& unknown) {
    for (int32_t peer = lane(); peer < a_.size; peer += width()) {
      const auto& mine = a_.buffers[member_];
      if (peer == rank_) {
        block_.input[peer] = static_cast<char*>(const_cast<void*>(mine.input));
        block_.output[peer] = static_cast<char*>(mine.output);
        continue;
      }
      if (!await(peer, base_)) return false;
      const Entry* announced = entry(rank_, peer);
      same_placement = same_placement && announced->placement == a_.placement;
      if (!known(peer, announced->input) || !known(peer, announced->output)) unknown = peer;
      block_.input[peer] = address_of(peer, announced->input);
      block_.output[peer] = address_of(peer, announced->output);
    }
    return true;
  }

  // A window whose array this rank has dropped is no longer mapped here.
  PC_FN bool known(int32_t peer, const Place& at) const {
    return at.window < 0 || a_.windows[at.window * a_.size + peer] != nullptr;
  }
  PC_FN bool complain_of(int32_t peer) const {
    const Patience patience(a_.host, a_.claimed, a_.timeout_ns);
    patience.report(DeviceFault::dropped, {rank_, peer, channel_, 0, call_, a_.digest, 0, base_});
    return false;
  }

  PC_FN char* address_of(int32_t peer, const Place& at) const {
    if (at.window == Place::nowhere) return nullptr;
    if (at.window == Place::address) return reinterpret_cast<char*>(at.offset);
    return a_.windows[at.window * a_.size + peer] + at.offset;
  }

  // A peer may be some calls ahead; its entry for this call is then gone, but it has entered this call.
  PC_FN bool same_call(int32_t peer) {
    const Entry* announced = entry(rank_, peer);
    if (announced->call > call_ || (announced->call == call_ && announced->digest == a_.digest)) return true;
    const Patience patience(a_.host, a_.claimed, a_.timeout_ns);
    patience.report(DeviceFault::mismatch, {rank_, peer, channel_, 0, call_, a_.digest, announced->digest, base_});
    return false;
  }

  PC_FN char* place(int32_t rank, int32_t place, int32_t chunk, int64_t begin, uint32_t slot) const {
    if (place >= 0) {
      const int64_t area = a_.mailbox.slot_bytes();
      return a_.mailboxes[rank] + a_.mailbox.scratch() + (2 * channel_ + slot) * area +
             place * plan_.tile_elements * a_.element;
    }
    const auto& mine = a_.buffers[member_];
    if (place == kPlaceInput) {
      char* base = rank == rank_ ? static_cast<char*>(const_cast<void*>(mine.input)) : block_.input[rank];
      return base + (plan_.layout[3 * chunk + 1] + begin) * a_.element;
    }
    char* base = rank == rank_ ? static_cast<char*>(mine.output) : block_.output[rank];
    return base + (plan_.layout[3 * chunk + 2] + begin) * a_.element;
  }

  // Stores this thread's share of the operands' addresses; returns whether they are aligned as the first source is.
  PC_FN bool gather(Operands& o, const Step& step, int64_t begin, uint32_t slot) const {
    const auto address = [&](int32_t rank, int32_t at) { return place(rank, at, step.chunk(), begin, slot); };
    const Source first = step.source(0);
    const auto off = reinterpret_cast<uintptr_t>(address(first.rank, first.place)) % kVectorBytes;
    bool aligned = true;
    for (int32_t i = lane(); i < step.sources(); i += width()) {
      const Source s = step.source(i);
      o.source[i] = address(s.rank, s.place);
      o.initial[i] = s.initial != 0;
      if (step.weighted()) o.weight[i] = step.weight(i);
      aligned = aligned && reinterpret_cast<uintptr_t>(o.source[i]) % kVectorBytes == off;
    }
    for (int32_t i = lane(); i < step.targets(); i += width()) {
      const Target t = step.target(i);
      o.target[i] = address(t.rank, t.place);
      aligned = aligned && reinterpret_cast<uintptr_t>(o.target[i]) % kVectorBytes == off;
    }
    if (lane() == 0) {
      o.k = step.sources();
      o.m = step.targets();
      o.complete = step.complete();
    }
    return aligned;
  }

  const Arguments& a_;
  BlockState& block_;
  const E elements_;
  const int32_t member_, rank_, channel_;
  ChannelState* const state_;
  const uint64_t base_, call_;
  PlanView plan_;
  uint64_t stride_ = 0;
  int turn_ = 0;
};

}  // namespace pc::cuda
