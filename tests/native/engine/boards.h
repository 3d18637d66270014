// Helpers of the tests of the engine's board.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "check.h"
#include "engine/negotiation/board.h"

namespace pc::test::boards {

using engine::Announcement;
using engine::Board;
using engine::Kind;
using engine::Member;
using engine::Signature;
using std::chrono::steady_clock;

constexpr int32_t kSlots = 64;

struct World {
  World(int32_t size, int64_t threshold, double cycle = 0, int32_t slots = kSlots) {
    const size_t bytes = (Board::bytes(size, slots) + 63) / 64 * 64;
    memory.reset(static_cast<char*>(std::aligned_alloc(64, bytes)), std::free);
    std::fill(memory.get(), memory.get() + bytes, '\0');
    for (int32_t r = 0; r < size; ++r) boards.push_back(std::make_unique<Board>(memory, memory.get(), r, size, slots));
    boards[0]->prepare();
    boards[0]->tune(threshold, cycle);
  }
  Board& operator[](size_t rank) { return *boards[rank]; }

  std::shared_ptr<char> memory;
  std::vector<std::unique_ptr<Board>> boards;
};

inline Announcement allreduce(const std::string& name, int64_t count = 4, Dtype dtype = Dtype::float32,
                              uint64_t group = 0) {
  Announcement a;
  a.name = name;
  a.signature.kind = Kind::allreduce;
  a.signature.dtype = dtype;
  a.signature.dims = 1;
  a.signature.shape[0] = count;
  a.signature.group = group;
  a.bytes = count * 4;
  return a;
}

inline Announcement join() {
  Announcement a;
  a.name = "join";
  a.signature.kind = Kind::join;
  return a;
}

inline void announce(Board& board, std::vector<Announcement>& unit, bool urgent = false,
                     std::vector<Member>* fetched = nullptr) {
  std::vector<Announcement*> items;
  for (Announcement& a : unit) items.push_back(&a);
  board.announce(items, urgent, Board::kNoLimit, fetched);
}

// Announces one operation; returns its slot.
inline int32_t announce(Board& board, Announcement a, bool urgent = false) {
  Announcement* one = &a;
  board.announce(std::span(&one, 1), urgent);
  return a.slot;
}

// All batches that can be cut now, without waiting for a cycle.
inline std::vector<std::vector<Member>> fetch_all(Board& board) {
  std::vector<std::vector<Member>> batches;
  for (;;) {
    board.cut();
    if (!board.has_batch()) return batches;
    batches.push_back(board.fetch());
  }
}

}  // namespace pc::test::boards
