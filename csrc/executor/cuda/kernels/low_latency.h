// Small messages: each rank pushes what each peer needs into that peer's mailbox, data and flag in the same word, and
// reduces or places what it receives, in rank order: the bits of `direct` at the cost of one trip.
//
// All ranks exchange at least a header in every call, so that no rank is more than one call ahead of another: packets
// of two calls, distinguished by parity, suffice.  A channel carries the same packets of every message, whatever the
// size: packets and call counts are per channel.  Short messages use more channels, with fewer packets each.
// Protocol: LL of NCCL (Hu et al., "Demystifying NCCL", 2025, section on protocols).
#pragma once

#include "base/status.h"
#include "executor/cuda/kernels/combine.h"
#include "executor/cuda/kernels/patience.h"

namespace pc::cuda {

// 8 bytes of elements, or the rest at the end of a message.  Low bytes first, as in memory.
PC_FN uint64_t load_bytes(const char* from, int64_t count) {
  if (count == 8 && reinterpret_cast<uintptr_t>(from) % 8 == 0) return *reinterpret_cast<const uint64_t*>(from);
  uint64_t bits = 0;
  for (int i = 0; i < count; ++i) bits |= uint64_t{static_cast<uint8_t>(from[i])} << (8 * i);
  return bits;
}

PC_FN void store_bytes(char* into, uint64_t bits, int64_t count) {
  if (count == 8 && reinterpret_cast<uintptr_t>(into) % 8 == 0) {
    *reinterpret_cast<uint64_t*>(into) = bits;
    return;
  }
  for (int i = 0; i < count; ++i) into[i] = static_cast<char>(bits >> (8 * i));
}

template <class E>
class LowLatencyBlock {
 public:
  // `exchange`: in shared memory.
  PC_FN LowLatencyBlock(const LowLatencyArguments& a, Exchange& exchange, int32_t member, int32_t channel)
      : a_(a),
        elements_(a.op, a.scaling),
        exchange_(exchange),
        uploaded_(a.exchanges + member),
        input_(static_cast<const char*>(a.buffers[member].input)),
        output_(static_cast<char*>(a.buffers[member].output)),
        rank_(a.first_rank + member),
        channel_(channel),
        state_(a.states + int64_t{member} * a.mailbox.channels + channel),
        call_(state_->packets + 1),
        flag_(static_cast<uint32_t>(call_ % 0xffffffffu) + 1u) {}  // 0 is the initial value of memory

  PC_FN void run() {
    if (a_.uniform < 0) {
      fetch();
      barrier();
      push();
    } else {
      push_to_all();
    }
    barrier();  // the code below may write where push() has read
    bool ok = meet_everybody();
    if constexpr (std::is_same_v<E, Unreduced>) ok = ok && place_all();
    else ok = ok && reduce();
    if (barrier_and(ok) && thread_index() == 0) state_->packets = call_;
  }

 private:
  static constexpr int kBatch = 8;  // loads in flight at a time

  PC_FN char* region(int32_t owner, int32_t from) const {
    const int64_t parity = static_cast<int64_t>(call_ & 1u);
    const int64_t at = ((parity * kLowLatencyChannels + channel_) * a_.size + from) * (kPackets + 1);
    return a_.mailboxes[owner] + a_.mailbox.packets() + at * static_cast<int64_t>(sizeof(Packet));
  }
  // Where the data of this channel's packet `i` begins in a message.
  PC_FN int64_t offset_of(int64_t i) const {
    return ((i / kRun * a_.dealt_to + channel_) * kRun + i % kRun) * kPacketBytes;
  }
  PC_FN static int64_t bytes_at(int64_t offset, int64_t bytes) {
    return bytes - offset < kPacketBytes ? bytes - offset : kPacketBytes;
  }

  PC_FN void store(char* region, int64_t packet, uint64_t bits) const {
    store_packet(region + packet * static_cast<int64_t>(sizeof(Packet)),
                 {{static_cast<uint32_t>(bits), flag_, static_cast<uint32_t>(bits >> 32), flag_}});
  }
  PC_FN Vector peek(const char* region, int64_t packet) const {
    return load_packet(region + packet * static_cast<int64_t>(sizeof(Packet)));
  }
  // Waits for a packet unless it had arrived when it was first polled.
  PC_FN bool settle(Vector& v, const char* region, int64_t packet, int32_t peer) const {
    Patience patience(a_.host, a_.claimed, a_.timeout_ns);
    DeviceFault fault = DeviceFault::none;
    while (v.word[1] != flag_ || v.word[3] != flag_) {
      if (!patience.keeps_waiting(fault)) {
        patience.report(fault, {rank_, peer, channel_, 0, call_, flag_, v.word[1], 0});
        return false;
      }
      v = peek(region, packet);
    }
    return true;
  }
  PC_FN static uint64_t data(const Vector& v) { return static_cast<uint64_t>(v.word[2]) << 32 | v.word[0]; }

  PC_FN void fetch() const {
    for (auto i = static_cast<int32_t>(thread_index()); i < a_.size; i += static_cast<int32_t>(thread_count())) {
      exchange_.send_offset[i] = uploaded_->send_offset[i];
      exchange_.send_count[i] = uploaded_->send_count[i];
      exchange_.recv_offset[i] = uploaded_->recv_offset[i];
      exchange_.recv_count[i] = uploaded_->recv_count[i];
    }
  }

  PC_FN void push_headers() const {
    for (auto i = static_cast<int32_t>(thread_index()); i < a_.size; i += static_cast<int32_t>(thread_count()))
      if (i != rank_) store(region(i, rank_), 0, a_.digest);
  }

  PC_FN void push_to_all() const {
    push_headers();
    const int64_t bytes = a_.uniform * a_.element;
    for (int64_t i = thread_index(); offset_of(i) < bytes; i += thread_count()) {
      const uint64_t bits = load_bytes(input_ + offset_of(i), bytes_at(offset_of(i), bytes));
      for (int32_t step = 1; step < a_.size; ++step) store(region((rank_ + step) % a_.size, rank_), i + 1, bits);
    }
  }

  PC_FN void push() const {
    push_headers();
    for (int32_t step = 1; step < a_.size; ++step) {
      const int32_t peer = (rank_ + step) % a_.size;  // ranks start with different peers
      char* into = region(peer, rank_);
      const int64_t bytes = exchange_.send_count[peer] * a_.element;
      const char* from = input_ + exchange_.send_offset[peer] * a_.element;
      for (int64_t i = thread_index(); offset_of(i) < bytes; i += thread_count())
        store(into, i + 1, load_bytes(from + offset_of(i), bytes_at(offset_of(i), bytes)));
    }
  }

  PC_FN bool meet_everybody() const {
    // From the last thread on: the first ones have the data of short messages.
    for (auto peer = static_cast<int32_t>(thread_count() - 1 - thread_index()); peer < a_.size;
         peer += static_cast<int32_t>(thread_count())) {
      if (peer == rank_) continue;
      const char* from = region(rank_, peer);
      Vector v = peek(from, 0);
      if (!settle(v, from, 0, peer)) return false;
      if (data(v) == a_.digest) continue;
      const Patience patience(a_.host, a_.claimed, a_.timeout_ns);
      patience.report(DeviceFault::mismatch, {rank_, peer, channel_, 0, call_, a_.digest, data(v), 0});
      return false;
    }
    return true;
  }

  PC_FN bool reduce() const {
    using L = Lanes<E, uint64_t>;
    const bool uniform = a_.uniform >= 0;
    const int64_t bytes = (uniform ? a_.uniform : exchange_.recv_count[rank_]) * a_.element;
    const char* from = input_ + (uniform ? 0 : exchange_.send_offset[rank_] * a_.element);
    char* into = output_ + (uniform ? 0 : exchange_.recv_offset[rank_] * a_.element);
    for (int64_t i = thread_index(); offset_of(i) < bytes; i += thread_count()) {
      const int64_t at = offset_of(i), count = bytes_at(at, bytes);
      const uint64_t own = load_bytes(from + at, count);
      typename E::A acc[L::count] = {};
      for (int32_t first = 0; first < a_.size; first += kBatch) {
        Vector v[kBatch];
#pragma unroll
        for (int b = 0; b < kBatch; ++b)
          if (first + b < a_.size && first + b != rank_) v[b] = peek(region(rank_, first + b), i + 1);
#pragma unroll
        for (int b = 0; b < kBatch; ++b) {
          const int32_t peer = first + b;
          if (peer >= a_.size) break;
          if (peer != rank_ && !settle(v[b], region(rank_, peer), i + 1, peer)) return false;
          L::fold(elements_, acc, peer == rank_ ? own : data(v[b]), peer == 0, true);
        }
      }
      store_bytes(into + at, L::pack(elements_, acc, true), count);
    }
    return true;
  }

  PC_FN bool place_all() const {
    for (int32_t step = 0; step < a_.size; ++step) {
      const int32_t peer = (rank_ + step) % a_.size;
      const int64_t bytes = exchange_.recv_count[peer] * a_.element;
      char* into = output_ + exchange_.recv_offset[peer] * a_.element;
      const char* own = input_ + exchange_.send_offset[rank_] * a_.element;
      const char* from = region(rank_, peer);
      for (int64_t i = thread_index(); offset_of(i) < bytes; i += thread_count()) {
        const int64_t at = offset_of(i), count = bytes_at(at, bytes);
        if (peer == rank_) {
          if (into != own) store_bytes(into + at, load_bytes(own + at, count), count);
          continue;
        }
        Vector v = peek(from, i + 1);
        if (!settle(v, from, i + 1, peer)) return false;
        store_bytes(into + at, data(v), count);
      }
    }
    return true;
  }

  const LowLatencyArguments& a_;
  const E elements_;
  Exchange& exchange_;
  const Exchange* const uploaded_;
  const char* const input_;
  char* const output_;
  const int32_t rank_, channel_;
  ChannelState* const state_;
  const uint64_t call_;
  const uint32_t flag_;
};

}  // namespace pc::cuda
