#include <algorithm>

#include "base/cuda/device.h"
#include "executor/cuda/kernels/device.h"
#include "executor/cuda/kernels/moves.h"

namespace pc::cuda {
namespace {

constexpr int64_t kPart = 32 << 10;  // bytes that a block moves at a time
constexpr int32_t kMoveThreads = 256;
constexpr int32_t kUnroll = 4;
constexpr int64_t kBlocksEach = 4;  // per multiprocessor

// Elements of W: all threads of the block, coalesced, several loads in flight.
template <class W>
PC_FN void move_words(W* to, const W* from, int64_t count) {
  const auto threads = static_cast<int64_t>(thread_count());
  int64_t i = thread_index();
  for (; i + (kUnroll - 1) * threads < count; i += kUnroll * threads) {
    W held[kUnroll];
#pragma unroll
    for (int32_t k = 0; k < kUnroll; ++k) held[k] = from != nullptr ? from[i + k * threads] : W{};
#pragma unroll
    for (int32_t k = 0; k < kUnroll; ++k) to[i + k * threads] = held[k];
  }
  for (; i < count; i += threads) to[i] = from != nullptr ? from[i] : W{};
}

// Uses the widest words that both addresses allow.
PC_FN void move_part(char* to, const char* from, int64_t bytes) {
  const auto bits = reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from);
  const auto as = [&]<class W>(W*) {
    const int64_t words = bytes / static_cast<int64_t>(sizeof(W)), done = words * static_cast<int64_t>(sizeof(W));
    move_words(reinterpret_cast<W*>(to), reinterpret_cast<const W*>(from), words);
    if (done < bytes) move_words(to + done, from != nullptr ? from + done : nullptr, bytes - done);
  };
  if (bits % sizeof(Vector) == 0) as(static_cast<Vector*>(nullptr));
  else if (bits % sizeof(uint32_t) == 0) as(static_cast<uint32_t*>(nullptr));
  else move_words(to, from, bytes);
}

constexpr int64_t parts_of(int64_t bytes) { return (bytes + kPart - 1) / kPart; }

// Parts are numbered across all pieces; a block processes its index and every a.blocks-th part after it.
__global__ void __launch_bounds__(kMoveThreads) move_all(const __grid_constant__ MoveArguments a) {
  int64_t next = static_cast<int64_t>(block_index()), first = 0;
  for (int32_t m = 0; m < a.count; ++m) {
    const Move& move = a.moves[m];
    const int64_t end = first + parts_of(move.bytes);
    for (; next < end; next += a.blocks) {
      const int64_t at = (next - first) * kPart, bytes = move.bytes - at < kPart ? move.bytes - at : kPart;
      move_part(move.to + at, move.from != nullptr ? move.from + at : nullptr, bytes);
    }
    first = end;
  }
}

}  // namespace

void load_moves() { load_kernel(move_all); }

void move_pieces(int device, const Move* moves, size_t count, cudaStream_t stream) {
  const OnDevice on(device);
  const int64_t most_blocks = kBlocksEach * device_attribute(cudaDevAttrMultiProcessorCount, device);
  const int64_t threads = std::min<int64_t>(kMoveThreads, device_attribute(cudaDevAttrMaxThreadsPerBlock, device));
  for (size_t first = 0; first < count; first += kMovesPerLaunch) {
    MoveArguments a{};
    int64_t parts = 0;
    for (size_t i = first; i < std::min(count, first + kMovesPerLaunch); ++i) {
      a.moves[a.count++] = moves[i];
      parts += parts_of(moves[i].bytes);
    }
    if (parts == 0) continue;
    a.blocks = static_cast<int32_t>(std::min(parts, most_blocks));
    void* parameters[] = {&a};
    check(cudaLaunchKernel(launchable(move_all), dim3(static_cast<unsigned>(a.blocks)),
                           dim3(static_cast<unsigned>(threads)), parameters, 0, stream),
          "cudaLaunchKernel");
  }
}

}  // namespace pc::cuda
