// What the ranks of a board share: the layout of its memory, and its lock.  Only for the board's own files.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "engine/negotiation/board.h"

namespace pc::engine {

constexpr size_t kNameBytes = 128, kWhyBytes = 384;  // longer ones are cut
constexpr uint64_t kRefusals = 16;  // the last ones are kept

struct Header {
  pthread_mutex_t mutex;  // robust: detects an owner that died
  std::atomic<uint32_t> broken;
  std::atomic<uint64_t> holding;  // times the mutex was taken; in the low bits its holder: rank + 1, or 0
  alignas(64) std::atomic<uint32_t> news;  // a futex
  std::atomic<uint32_t> sleepers;
  alignas(64) std::atomic<uint64_t> batches;  // cut so far
  std::atomic<int32_t> ready;  // operations that wait to be cut
  std::atomic<int64_t> threshold;  // bytes
  std::atomic<double> cycle;  // seconds
  uint64_t ids;  // written to the ring so far
  uint64_t rounds;  // announced so far
  uint64_t refused;  // submissions, so far
  Backlog backlog;
  int32_t used, hand;
  int32_t join_slot;  // in which a rank has joined
  RankSet joined;
  std::atomic<uint32_t> prepared;  // kPrepared
  // Each written only by its own rank; in separate cache lines, since a rank writes its own after every batch.
  struct alignas(64) Progress { std::atomic<uint64_t> beats, completed; } progress[kMostRanks];
  struct Refused {
    int32_t rank;  // -1: since submitted
    char name[kNameBytes], why[kWhyBytes];
  } refusals[kRefusals];
};

// An operation.  A rank may complete a round and announce the next before a slower one has fetched it: a slot holds two
// rounds, and one becomes ready only when all ranks have fetched the previous one.
struct Slot {
  NameHash hash;
  char name[kNameBytes];
  int32_t next;  // in its bucket; -1: the last
  uint32_t turn;
  RankSet announced;  // the round that is being announced: rounds[turn & 1]
  RankSet outstanding;  // ranks that have not fetched the agreed round: the other one
  Round rounds[2];
  RankSet absent[2];  // ranks that had joined and take part without submitting
  int64_t rows[];  // of both rounds, one for each rank

  Round& current() { return rounds[turn & 1]; }
  const Round& current() const { return rounds[turn & 1]; }
  Round& agreed() { return rounds[~turn & 1]; }
};

struct Board::Batch {
  uint64_t first;  // in the ring
  int32_t count;
};

// Holds the board, unless taking it took longer than the limit.  A rank that died holding it left it in an unknown
// state: it is not used any more.
class Board::Lock {
 public:
  // Throws CommunicatorFault if a rank died holding it, SystemFailure, and what board.locked_out throws.
  Lock(Board& board, Limit limit);
  ~Lock();
  Lock(const Lock&) = delete;
  explicit operator bool() const { return held_; }

  static int32_t holder_of(const Header& header);  // -1: none, or unknown

 private:
  Header& header_;
  bool held_ = false;
};

constexpr size_t round_up(size_t bytes) { return (bytes + 63) / 64 * 64; }
constexpr size_t slot_bytes(int32_t size) { return round_up(sizeof(Slot) + 2 * sizeof(int64_t) * size); }

}  // namespace pc::engine
