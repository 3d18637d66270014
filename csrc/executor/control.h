// The shared control block of a communicator: counters, fingerprints, presence, and the abort record.
// Located at the start of the communicator's shared segment, initially zero.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "dtype/table.h"
#include "schedule/call_arrays.h"

namespace pc {

constexpr uint32_t kRing = 16;  // number of calls whose fingerprints are kept

// A rank's description of the call it makes.  Ranks whose fingerprints differ raise MismatchError.  Names and labels
// are for messages and may be truncated; their full text is in the digests.
struct Fingerprint {
  int64_t count;  // elements of the call's logical buffer
  uint64_t blocks;  // digest of the block counts
  uint64_t program;  // digest of the topology's label and, of a user's topology, of its schedule
  uint64_t code;  // digest of the operator's name and of what a custom one computes
  uint64_t purpose;  // digest of the note
  double prescale;
  double postscale;
  int32_t root;  // -1: not applicable
  Collective collective;
  Operator op;
  Dtype dtype;
  uint8_t placement;  // Placement bits; ranks may differ, see Team::handshake
  char topology[96];  // name and parameters
  char operation[32];  // the operator's name
  char note[48];  // other required agreement: the purpose of an internal call, the shape of a row

  uint64_t digest() const;  // of everything but the placement
  // The call of `rank`, one of `ranks`, in words.  `step`: of a weighted call.
  std::string describe(int32_t rank, int32_t ranks, int64_t step = 0) const;
  // The difference between two with the same description; empty: none.
  std::string hidden_difference(const Fingerprint& other) const;
};

uint64_t digest_of(const std::vector<int64_t>& counts);

// The positions of a rank's arrays in the communicator's windows or in the heap of its process.
struct Location {
  static constexpr int64_t kNone = -1, kHeap = INT64_MAX;
  int64_t window = kNone;  // its id, or one of these
  int64_t offset = 0;
  bool found() const { return window != kNone; }
};

// The sequence number is stored before and after the rest: if both are equal, it belongs to that call.
struct Entry {
  std::atomic<uint64_t> begun, complete;
  Fingerprint fingerprint;
  std::atomic<uint64_t> placed;  // of a call with arrays in windows: see placed()
  Location input;
  Location output;
  int64_t step;  // of a weighted call, see Operation
};

// Memory order of loading a counter.  A test weakens it, to show that the thread sanitizer would notice.
#if defined(PC_TEST_WEAK_ACQUIRE)
constexpr auto kAcquire = std::memory_order_relaxed;
#else
constexpr auto kAcquire = std::memory_order_acquire;
#endif

// For messages: "1", or "1 (world rank 3)" if its number in the world differs; a number with up to six digits; and
// ", NAME=VALUE" of a factor, or nothing if it is 1.
std::string rank_number(int32_t rank, int32_t world);
std::string number_text(double value);
std::string factor_text(const char* name, double value);

enum class Presence : uint32_t { absent = 0, here = 1, departed = 2 };

constexpr size_t kNearCells = 16;  // bytes
constexpr uint32_t kAhead = 8;  // how many calls, a power of two, a rank may leave early before a peer enters them

// One rank's part.  The first cache line is written only by its rank and polled by its peers: a peer that sees the
// counter has, without fetching another line, what it checks and, of the smallest calls, what it reads.
struct alignas(128) RankBlock {
  std::atomic<uint64_t> counter;  // sequentially consistent: see Team::publish; only grows
  std::atomic<uint32_t> waiters;  // number of sleepers on the counter's low half
  std::atomic<uint64_t> latest;   // the newest of the entries of `call` that was published
  alignas(16) char near_cells[kAhead][kNearCells];  // scratch of plans with near cells, by slot; in this line: two

  // Not in the other half of a pair of lines, which some processors fetch together.
  alignas(128) std::atomic<uint64_t> call[kRing];  // by sequence: the call's digest with the sequence mixed in

  alignas(64) Entry entry[kRing];

  alignas(64) std::atomic<Presence> presence;
  std::atomic<int32_t> pid;
  std::atomic<uint64_t> pid_namespace;  // in which the process id is valid; 0: unknown
  std::atomic<uint64_t> started;  // start time of the process, to detect a reused id; 0: unknown
  std::atomic<int32_t> awaited;  // the rank that this one waits for
  std::atomic<int64_t> looked;  // when it last looked for that rank: nanoseconds of the steady clock
  std::atomic<uint64_t> given_up;  // the first call that this rank has given up; 0: none
  std::atomic<uint8_t> agreed;  // by the first rank of a host: the placement of the newest call that is negotiated
  std::atomic<uint32_t> survivor;  // generation of shrink() that this rank takes part in
  std::atomic<uint32_t> heap;  // 1: `heap_token` names the heap of its process
  std::atomic<uint32_t> heap_readers;  // how many ranks of its host have mapped it for this communicator
  char heap_token[64];
  char mail[256];  // shrink(): the leader's description of the new communicator
  char failure[512];  // with Presence::departed: what ended the program; empty: no error

  uint32_t* futex() { return reinterpret_cast<uint32_t*>(&counter); }  // its low half: CPUs are little-endian
  void wake();  // the ranks that sleep on the counter
  void set_failure(const std::string& text) { failure[text.copy(failure, sizeof failure - 1)] = '\0'; }
};

// What Entry::placed holds of a call.  A rank without an array in a window writes nothing, and may be calls ahead.
// `fills`: its arrays hold the call's input only after it has filled them, see Team::fill.
constexpr uint64_t kFills = 1 << 8;
inline uint64_t placed(uint64_t sequence, uint8_t placement, bool fills = false) {
  return sequence << 16 | (fills ? kFills : 0) | placement;
}

constexpr uint32_t kPoisoned = ~0u;

// Why a communicator is given up, and from which call on: those before may have all that they need.
struct Abort {
  Fault fault;
  int32_t culprit;
  std::string text;
  int64_t channel = -1;  // whose calls are numbered, see Channel
  uint64_t call = 0;  // 0: also those in flight, of every channel
};

struct alignas(64) ControlHeader {
  std::atomic<uint32_t> abort;  // 0: sound, 1 + rank: being written by it, kPoisoned: readable
  Fault fault;
  int32_t culprit;
  int64_t channel;
  uint64_t call;
  char text[2048];
};

// The control block of one communicator or of one pair channel.
struct Control {
  ControlHeader* header = nullptr;
  RankBlock* first = nullptr;  // the blocks of all ranks, if these are on one host: found without a load
  std::vector<RankBlock*> blocks;  // by rank; those of ranks on other hosts are private, see Remote

  bool poisoned() const { return header->abort.load(std::memory_order_relaxed) != 0; }
  RankBlock& block(int32_t rank) const { return first != nullptr ? first[rank] : *blocks[static_cast<size_t>(rank)]; }
  // The first fault wins: false if there was one.  The sleepers on all blocks are woken.  `writer`: the calling rank.
  bool poison(int32_t writer, const Abort& why) const;
  // Whether this call of the channel is given up.  A record that is being written ends no call yet.
  bool ends(int64_t channel, uint64_t call) const {
    if (header->abort.load(std::memory_order_acquire) != kPoisoned) return false;
    return header->call == 0 || (header->channel == channel && header->call <= call);
  }
  // `already_raised`: by an earlier call.  `gone`: whether a rank's process has ended.
  [[noreturn]] void raise(bool already_raised, const std::function<bool(int32_t)>& gone) const;
};

}  // namespace pc
