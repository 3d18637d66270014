// The shared control block of a communicator: counters, fingerprints, presence, and the abort record.
// It lies at the start of the communicator's shared segment and begins as zeros.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "base/status.h"
#include "dtype/table.h"
#include "schedule/call_arrays.h"

namespace pc {

constexpr uint32_t kRing = 16;  // calls whose fingerprints are kept

// What a rank announces about the call it makes.  Ranks whose fingerprints differ raise MismatchError.  Names and labels
// are for people, and cut to fit; their whole text is in the digests.
struct Fingerprint {
  int64_t count;  // elements of the call's logical buffer
  uint64_t blocks;  // digest of the block counts
  uint64_t program;  // digest of the topology's label and, of a user's topology, of its schedule
  uint64_t code;  // digest of the operator's name and of what a custom one computes
  uint64_t purpose;  // digest of the note
  double prescale;
  double postscale;
  int32_t root;  // -1: the collective has none
  Collective collective;
  Operator op;
  Dtype dtype;
  uint8_t placement;  // Placement bits; ranks may differ, see Team::greet
  char topology[96];  // name and parameters
  char operation[32];  // the operator's name
  char note[48];  // what else must agree: the purpose of an internal call, the shape of a row

  uint64_t digest() const;  // of everything but the placement
  // In words; of a message, as its sender or its receiver calls it.
  std::string describe(bool receives = false) const;
  // What differs although both describe themselves in the same words; empty: nothing.
  std::string hidden_difference(const Fingerprint& other) const;
};

// Where a rank's arrays lie in the communicator's windows; -1: not in a window.
struct Location {
  int64_t window = -1;
  int64_t offset = 0;
};

// The sequence number is stored before and after the rest: equal numbers mean that it belongs to that call.
struct Entry {
  std::atomic<uint64_t> begun, complete;
  Fingerprint fingerprint;
  Location input;
  Location output;
  bool fills;  // its arrays hold the call's input only after it has met its peers and filled them: see Team::fill
};

// How a counter is read before what it announces.  A test weakens it, to show that the thread sanitizer would notice.
#if defined(PC_TEST_WEAK_ACQUIRE)
constexpr auto kAcquire = std::memory_order_relaxed;
#else
constexpr auto kAcquire = std::memory_order_acquire;
#endif

// For messages: "1", or "1 (world rank 3)" where the world has another number for the rank.
std::string rank_number(int32_t rank, int32_t world);

enum class Presence : uint32_t { absent = 0, here = 1, departed = 2 };

// One rank's part.  The first line is written by its rank alone and polled by its peers.
struct alignas(64) RankBlock {
  std::atomic<uint64_t> counter;  // release-stored; only grows
  std::atomic<uint32_t> waiters;  // how many sleep on the counter's low half
  std::atomic<uint64_t> call[kRing];  // by sequence: the call's digest with the sequence mixed in

  alignas(64) Entry entry[kRing];

  alignas(64) std::atomic<uint32_t> presence;
  std::atomic<int32_t> pid;
  std::atomic<uint64_t> pid_namespace;  // in which the number means something; 0: unknown
  std::atomic<uint64_t> started;  // start time of the process, of two with one number; 0: unknown
  std::atomic<int32_t> awaited;  // the rank that this one waits for, as it
  std::atomic<int64_t> looked;  // last looked: nanoseconds of the steady clock
  std::atomic<uint32_t> survivor;  // generation of shrink() that this rank takes part in
  char mail[256];  // shrink(): the leader's description of the new communicator
};

constexpr uint32_t kPoisoned = ~0u;

struct alignas(64) ControlHeader {
  std::atomic<uint32_t> abort;  // 0 sound, 1 + rank being written by it, kPoisoned the record is readable
  Fault fault;
  int32_t culprit;
  char text[2048];
};

// The control block of one communicator or of one pair channel.
struct Control {
  ControlHeader* header;
  RankBlock* blocks;

  bool poisoned() const { return header->abort.load(std::memory_order_relaxed) != 0; }
  // The first fault wins; sleepers are woken.  `size` blocks are told, by `writer`.
  void poison(int32_t size, int32_t writer, Fault fault, int32_t culprit, const std::string& text);
  // `told_before`: some earlier call has raised this already.  `gone` tells whether a rank's process has ended.
  [[noreturn]] void raise(bool told_before, const std::function<bool(int32_t)>& gone) const;
};

}  // namespace pc
