// Choosing a kernel at run time, and the two kernels without arithmetic.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>

#include "base/environment.h"
#include "dtype/kernels.h"
#if defined(PC_X86_KERNELS)
#include "dtype/x86_level.h"
#endif

namespace pc {

#define PC_DECLARE(isa)                                \
  namespace isa {                                      \
  Kernel kernel_for(Dtype dtype, Operator op);         \
  void copy(void* to, const void* from, size_t bytes); \
  }
PC_DECLARE(baseline)
#if defined(PC_X86_KERNELS)
PC_DECLARE(avx2)
PC_DECLARE(avx512)
#endif
#undef PC_DECLARE

namespace {

int detect_level() {
  int level = 1;
#if defined(PC_X86_KERNELS)
  level = x86_level();
#endif
  return std::min(level, std::max(1, static_cast<int>(environment().isa)));
}

int level() {
  static const int value = detect_level();
  return value;
}

constexpr size_t kOwnCopy = 2048;  // bytes; below, memcpy is as fast and needs no call through a pointer

using CopyFunction = void (*)(void*, const void*, size_t);

CopyFunction own_copy() {
#if defined(PC_X86_KERNELS)
  if (level() == 3) return avx512::copy;
  if (level() == 2) return avx2::copy;
#endif
  return baseline::copy;
}

void library_copy(void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); }

// The slowest copy, in seconds, over several address pairs that are close to each other modulo a page.
double worst_seconds(CopyFunction copy) {
  using Clock = std::chrono::steady_clock;
  constexpr size_t page = 4096, bytes = 2 * page;
  const auto memory = std::make_unique<char[]>(8 * page);
  char* const from = memory.get() + (page - reinterpret_cast<uintptr_t>(memory.get()) % page);
  double worst = 0;
  for (const size_t distance : {0, 1, 15, 31, 48, 63, 4033, 4095}) {
    double best = 1;
    for (int i = 0; i < 5; ++i) {
      const auto start = Clock::now();
      copy(from + 3 * page + distance, from, bytes);
      best = std::min(best, std::chrono::duration<double>(Clock::now() - start).count());
    }
    worst = std::max(worst, best);
  }
  return worst;
}

// memcpy writes lines that a peer has read faster than any loop of loads and stores (64 KiB: 2.9 us, not 4.3), but is
// ruled out if the processor has the problem described in kernels.h.  Takes tens of microseconds, once per process.
CopyFunction choose_copy() {
  constexpr double trap = 3;  // the ratio is 5 to 10 with the problem, at most 2 without
  const CopyFunction own = own_copy();
  return worst_seconds(library_copy) > trap * worst_seconds(own) ? own : library_copy;
}

}  // namespace

Kernel kernel_for(Dtype dtype, Operator op) {
#if defined(PC_X86_KERNELS)
  if (level() == 3) return avx512::kernel_for(dtype, op);
  if (level() == 2) return avx2::kernel_for(dtype, op);
#endif
  return baseline::kernel_for(dtype, op);
}

const char* instruction_set() {
  constexpr const char* names[] = {"baseline", "avx2", "avx512"};
  return names[level() - 1];
}

void copy_bytes(void* to, const void* from, size_t bytes) {
  if (bytes < kOwnCopy) {
    if (bytes != 0) std::memcpy(to, from, bytes);  // the addresses may be null if empty
    return;
  }
  static const CopyFunction copy = choose_copy();
  copy(to, from, bytes);
}

void copy_block(const Block& b, size_t element_size) {
  if (b.streamed != nullptr && b.m == 1 && b.streamed[0] && b.targets[0] != b.sources[0]) {
    static const Combine bytewise = kernel_for(Dtype::uint8, Operator::bor).plain;  // with one source: a copy
    Block bytes = b;
    bytes.count = b.count * element_size;
    return bytewise(bytes);
  }
  for (int d = 0; d < b.m; ++d)
    if (b.targets[d] != b.sources[0]) copy_bytes(b.targets[d], b.sources[0], b.count * element_size);
}

void combine_custom(const Block& b, size_t element_size) {
  alignas(64) char into[4096];
  const size_t run = sizeof into / element_size;
  for (size_t at = 0; at < b.count; at += run) {
    const size_t count = std::min(run, b.count - at);
    std::memcpy(into, static_cast<const char*>(b.sources[0]) + at * element_size, count * element_size);
    for (int s = 1; s < b.k; ++s)
      b.custom(into, static_cast<const char*>(b.sources[s]) + at * element_size, static_cast<int64_t>(count));
    for (int d = 0; d < b.m; ++d)
      std::memcpy(static_cast<char*>(b.targets[d]) + at * element_size, into, count * element_size);
  }
}

}  // namespace pc
