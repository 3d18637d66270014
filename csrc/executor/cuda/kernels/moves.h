// Copies of many pieces of device memory in one launch, to fill and empty fusion buffers.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace pc::cuda {

struct Move {
  char* to;
  const char* from;  // null: zeros
  int64_t bytes;
};

constexpr int32_t kMovesPerLaunch = 168;  // limited by the size of kernel parameters

struct MoveArguments {
  int32_t count;
  int32_t blocks;
  Move moves[kMovesPerLaunch];
};
static_assert(sizeof(MoveArguments) <= 4096);

// Loads the kernel on the calling thread's device, before the first move_pieces().
void load_moves();

// Enqueues the copies on the stream.  Pieces must not overlap.  Throws SystemFailure.
void move_pieces(int device, const Move* moves, size_t count, cudaStream_t stream);

}  // namespace pc::cuda
