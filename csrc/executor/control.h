// The shared control block of a communicator: counters, fingerprints, presence, and the abort record.
// It lies at the start of the communicator's shared segment and begins as zeros.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "base/status.h"
#include "dtype/table.h"

namespace pc {

enum class Collective : uint8_t {
  allreduce,
  broadcast,
  reduce,
  reduce_scatter,
  allgather,
  gather,
  scatter,
  alltoall,
  barrier,
  send,
  count
};
const char* name_of(Collective collective);

constexpr uint32_t kRing = 16;  // calls whose fingerprints are kept

// What a rank says about the call it makes.  Ranks whose fingerprints differ raise MismatchError.
struct Fingerprint {
  int64_t count;         // elements of the call's logical buffer
  uint64_t detail;       // hash of what describe() does not spell out: block counts, a custom operator's code
  double prescale;
  double postscale;
  int32_t root;          // -1: the collective has none
  Collective collective;
  Operator op;
  Dtype dtype;
  uint8_t placement;     // Placement bits; ranks may differ, see Team::greet
  char topology[40];     // name and parameters, cut to fit
  char operation[24];    // the operator's name

  uint32_t digest() const;
  std::string describe() const;
};

enum Placement : uint8_t { input_shared = 1, output_shared = 2, in_place = 4 };

// Where a rank's arrays lie in the communicator's windows; -1: not in a window.
struct Location {
  int64_t window = -1;
  int64_t offset = 0;
};

struct Entry {
  Fingerprint fingerprint;
  Location input;
  Location output;
};

// How a counter is read before what it announces.  A test weakens it, to show that the thread sanitizer would notice.
#if defined(PC_TEST_WEAK_ACQUIRE)
constexpr auto kAcquire = std::memory_order_relaxed;
#else
constexpr auto kAcquire = std::memory_order_acquire;
#endif

enum class Presence : uint32_t { absent = 0, here = 1, departed = 2 };

// One rank's part.  The first line is written by its rank alone and polled by its peers.
struct alignas(64) RankBlock {
  std::atomic<uint64_t> counter;         // release-stored; only grows
  std::atomic<uint32_t> waiters;         // how many sleep on the counter's low half
  std::atomic<uint64_t> digest[kRing];   // (sequence << 32 | fingerprint digest), by sequence

  alignas(64) Entry entry[kRing];

  alignas(64) std::atomic<uint32_t> presence;
  std::atomic<int32_t> pid;
  std::atomic<uint64_t> pid_namespace;   // in which the number means something; 0: unknown
  std::atomic<uint32_t> survivor;        // generation of shrink() that this rank takes part in
  char mail[256];                        // shrink(): the leader's description of the new communicator
};

struct alignas(64) ControlHeader {
  std::atomic<uint32_t> abort;  // 0 sound, 1 being written, 2 poisoned and the record is readable
  Fault fault;
  int32_t culprit;
  char text[2048];
};

// The control block of one communicator or of one pair channel.
struct Control {
  ControlHeader* header;
  RankBlock* blocks;

  bool poisoned() const { return header->abort.load(std::memory_order_relaxed) != 0; }
  // The first fault wins; sleepers are woken.  `size` blocks are told.
  void poison(int32_t size, Fault fault, int32_t culprit, const std::string& text);
  // `told_before`: some earlier call has raised this already.
  [[noreturn]] void raise(bool told_before) const;
};

}  // namespace pc
