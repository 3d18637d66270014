// The arguments of a kernel launch: plain data, the same for nvcc and g++.
//
// A launch runs one rank (one process per rank, peers mapped by CUDA IPC) or all ranks of a communicator (virtual ranks
// on one GPU).  A rank runs as `channels` blocks; channel c of every rank works on tiles c, c + channels, ...
#pragma once

#include <cstddef>
#include <cstdint>

#include "schedule/schedule.h"

namespace pc::cuda {

constexpr int32_t kMostRanks = 64;  // of a communicator on one node
constexpr int32_t kMostChannels = 64;  // blocks of a rank
constexpr int32_t kMostVirtual = 32;  // ranks of one launch
constexpr int32_t kOperands = 128;  // most sources, and most targets, of a step
constexpr int32_t kThreads = 512;  // largest block
constexpr int64_t kMostWindows = 1024;
constexpr uint32_t kRing = 8;  // number of calls whose entries are kept

// The low-latency path: 8 bytes of data travel with two copies of a 4-byte flag in one 16-byte packet.
constexpr int32_t kPackets = 512;  // of a channel's message, without its header
constexpr int32_t kRun = 128;  // adjacent packets on one channel; runs are dealt to the channels in turn
constexpr int64_t kPacketBytes = 8;  // data in a packet
constexpr int64_t kLowLatencyBytes = 64 << 10;  // longest message
constexpr int32_t kLowLatencyChannels = static_cast<int32_t>(kLowLatencyBytes / (kPackets * kPacketBytes));

// The unit that a thread moves.
struct alignas(16) Vector { uint32_t word[4]; };

struct alignas(16) Packet { uint32_t data0, flag0, data1, flag1; };

// The position of an array: in a window (the offset within a rank's part) or, if all ranks share one address space, at
// an address.  Neither: no peer accesses the array.
struct Place {
  static constexpr int64_t nowhere = -1, address = -2;
  int64_t window;  // index into the windows' table, or one of the above
  int64_t offset;  // bytes, or the address itself
};

// A rank's announcement on entering a call; pushed into every peer's mailbox, channel by channel.
struct alignas(64) Entry {
  uint64_t call;  // the channel's number of this call
  uint64_t digest;  // of the fingerprint
  Place input, output;
  uint32_t placement;
  uint32_t pad;
};

// A rank's mailbox: window memory that peers write and its rank polls.  Initially zero.  Offsets are in bytes.
struct Mailbox {
  int32_t size, channels;
  int64_t scratch_bytes;  // of the rank, all channels and both slots

  static constexpr int64_t round_up(int64_t bytes) { return (bytes + 255) / 256 * 256; }
  constexpr int64_t counters() const { return 0; }  // uint64 [channels][size], each in a separate cache line
  constexpr int64_t entries() const { return counters() + int64_t{64} * channels * size; }
  constexpr int64_t packets() const { return entries() + int64_t{sizeof(Entry)} * channels * size * kRing; }
  constexpr int64_t scratch() const {
    return round_up(packets() + int64_t{sizeof(Packet)} * (kPackets + 1) * kLowLatencyChannels * size * 2);
  }
  constexpr int64_t slot_bytes() const { return scratch_bytes / (2 * channels) / 256 * 256; }  // of a channel
  constexpr int64_t bytes() const { return scratch() + round_up(scratch_bytes); }
};

// A rank's state between calls; in device memory, so that a replayed graph continues from there.
struct ChannelState {
  uint64_t base;  // the counter value of the next call's entry
  uint64_t calls;  // executor calls so far
  uint64_t packets;  // low-latency calls so far
  uint64_t slot;  // scratch slot of the next tile, modulo 2
  uint64_t guard[2][kMostRanks];  // counters to be reached before a slot is written again
};

enum class DeviceFault : uint32_t { none = 0, mismatch, timeout, aborted, dropped };

// In host memory that kernels can write.  The first fault wins.
struct FaultRecord {
  int32_t rank;  // that found it
  int32_t peer;  // that it concerns
  int32_t channel;
  int32_t pad;
  uint64_t call;  // the channel's number of the call
  uint64_t expected, found;  // a timeout: counter values, or flags of packets; a mismatch: digests
  uint64_t base;  // the counter value of the call's entry; 0 for packets
};

struct HostWords {
  uint64_t fault;  // DeviceFault; stored after the record
  FaultRecord record;
  uint32_t abort;  // not 0: kernels give up
};

struct ScaleFactors {
  double prescale, divisor, postscale;
  int32_t active;
};

// The part of a plan that differs between the ranks of a launch.
struct RankTables {
  const int32_t* table;  // device memory, see schedule.h
  const int32_t* fallback;  // staged; null: the plan is staged itself
  int32_t words, fallback_words;
};

// A step table and its mapping to elements.
struct PlanView {
  const int64_t* layout;  // device memory: (length, input offset, output offset) of each chunk
  int32_t chunks;
  int64_t tile_elements;
  int64_t tiles;
};

// Arguments common to all calls.
struct CallArguments {
  int32_t size, first_rank, ranks_here, channels;
  Mailbox mailbox;
  char* mailboxes[kMostRanks];  // as mapped here
  ChannelState* states;  // device memory [ranks_here][mailbox.channels]
  HostWords* host;
  uint32_t* claimed;  // device memory: a fault has been reported
  ScaleFactors scaling;
  uint64_t digest;
  uint64_t timeout_ns;
  uint64_t custom;  // address of the user-defined operator, for kernels that call it through one
  int32_t op;  // Operator
  int32_t element;  // bytes
  int32_t gpu_scope;  // all ranks are in this launch: flags need no more than the GPU's scope
};

struct Arguments : CallArguments {
  char* const* windows;  // device memory [window][size]: each rank's part as mapped here
  RankTables tables[kMostVirtual];  // of the ranks here
  PlanView plan, fallback;
  int32_t normalises;  // the operator applies even to a single contribution (land, lor)
  int32_t negotiates;  // wait for all peers on entry and agree on the arrays' placement
  uint32_t placement;
  struct Buffers {
    const void* input;
    void* output;
    Place input_at, output_at;
  } buffers[kMostVirtual];
};
static_assert(sizeof(Arguments) <= 4096);

// The data exchanged between ranks in a low-latency call, in elements.
struct Exchange {
  int64_t send_offset[kMostRanks], send_count[kMostRanks];  // of the input, to each rank
  int64_t recv_offset[kMostRanks],
      recv_count[kMostRanks];  // of the output, from each rank; all the same if the call reduces
};

struct LowLatencyArguments : CallArguments {
  const Exchange* exchanges;  // device memory [ranks_here]
  int32_t dealt_to;  // channels among which the runs of packets are dealt, whatever the message's length
  int64_t uniform;  // elements that every rank sends from offset 0 to all and receives at offset 0, or -1
  struct Buffers {
    const void* input;
    void* output;
  } buffers[kMostVirtual];
};

}  // namespace pc::cuda
