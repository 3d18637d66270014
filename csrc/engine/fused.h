// An allreduce of many pieces of memory as if they were one buffer.
//
// Pieces in windows are reduced in place, adjacent ones together. All others pass through the fusion buffer, itself a
// window, tile by tile: pack, reduce, unpack, while the tile is in the cache.  Between hosts a tile would cost a round
// trip, and the buffer holds all of them.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "base/bits.h"
#include "base/lru.h"
#include "engine/timeline.h"
#include "executor/cpu/team.h"

namespace pc::engine {

// A rank's part of an operation.
struct Piece {
  const char* input;  // null: zeros (this rank has joined)
  char* output;       // null: the result is not needed
  int64_t bytes;
  int64_t place;      // as for Announcement
};

// Parameters of a reduction.
struct Reduction {
  Dtype dtype;
  Operator op;
  double prescale, postscale;
  // A total order, as a map requires: factors are ordered by their bits, since `<` on doubles is not one with NaN.
  auto operator<=>(const Reduction& other) const { return key() <=> other.key(); }
  bool operator==(const Reduction& other) const { return key() == other.key(); }

 private:
  std::tuple<Dtype, Operator, uint64_t, uint64_t> key() const {
    return {dtype, op, bits_of(prescale), bits_of(postscale)};
  }
};

class FusedAllreduce {
 public:
  // A plan for an allreduce in place of about as many elements; creates one from the topology, and may be slow.
  // `shared`: in a window.
  using PlanMaker = std::function<std::shared_ptr<const Plan>(const Reduction&, int64_t count, bool shared)>;

  // `buffer`: `bytes` bytes of this rank's part of a window of the team's, for `buffers` tiles; not used if the team
  // spans hosts.
  FusedAllreduce(std::shared_ptr<Team> team, PlanMaker maker, char* buffer, int64_t bytes, int32_t buffers,
                 Timeline& timeline);

  // The same pieces on all ranks, except for addresses.  `everybody`: no rank has joined.
  // Throws CommunicatorFault.
  void run(const Reduction& reduction, std::vector<Piece> pieces, bool everybody);

 private:
  class Walk;
  void reduce(const Reduction& reduction, const char* input, char* output, int64_t bytes, bool shared,
              const std::function<bool()>& meanwhile);
  void pack(Walk& walk, char* buffer, int64_t bytes);
  void unpack(Walk& walk, const char* buffer, int64_t bytes);
  void run_in_windows(const Reduction& reduction, std::vector<Piece>& pieces);
  void run_packed(const Reduction& reduction, const std::vector<Piece>& pieces);
  std::shared_ptr<const Plan> plan_for(const Reduction& reduction, int64_t count, bool shared);

  std::shared_ptr<Team> team_;
  PlanMaker maker_;
  char* buffer_;
  int32_t buffers_;
  int64_t tile_bytes_;
  std::vector<char> room_;  // for the pieces of a call between hosts
  Timeline& timeline_;
  static constexpr size_t kMostPlans = 4096;
  using Key = std::tuple<Reduction, int64_t, bool>;  // how, elements, in a window
  template <class K, class V> using Map = std::map<K, V>;
  LruCache<Key, std::shared_ptr<const Plan>, Map> plans_{kMostPlans}, models_{kMostPlans};
};

}  // namespace pc::engine
