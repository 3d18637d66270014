// Choosing a kernel at run time, and the two kernels without arithmetic.
#include <algorithm>
#include <cstring>

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

int level() {
#if defined(PC_X86_KERNELS)
  static const int value = std::min(x86_level(), std::max(1, static_cast<int>(environment().isa)));
#else
  constexpr int value = 1;
#endif
  return value;
}

constexpr size_t kOwnCopy = 2048;  // bytes; below, memcpy is as fast

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
#if defined(PC_X86_KERNELS)
  if (level() == 3) return avx512::copy(to, from, bytes);
  if (level() == 2) return avx2::copy(to, from, bytes);
#endif
  baseline::copy(to, from, bytes);
}

void copy_block(const Block& b, size_t element_size) {
  static const Combine bytewise = kernel_for(Dtype::uint8, Operator::bor).plain;  // with one source: a copy
  const size_t bytes = b.count * element_size;
  for (int d = 0; d < b.m; ++d) {
    if (b.targets[d] == b.sources[0]) continue;
    const bool streamed = b.streamed != nullptr && b.streamed[d];
    if (!streamed) copy_bytes(b.targets[d], b.sources[0], bytes);
    else bytewise({b.sources, b.initial, &b.targets[d], 1, 1, bytes, b.complete, b.scaling, nullptr, &streamed});
  }
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
