// The lock of a board, shared by its ranks.  Only for the board's own files.
#pragma once

#include "engine/negotiation/board_memory.h"

namespace pc::engine {

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

}  // namespace pc::engine
