// The kernels of every instruction set of this machine.
#pragma once

#include <vector>

#include "dtype/kernels.h"

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

namespace test {

struct InstructionSet {
  const char* name;
  Kernel (*kernel_for)(Dtype, Operator);
  void (*copy)(void*, const void*, size_t);
};

inline std::vector<InstructionSet> instruction_sets() {
  std::vector<InstructionSet> sets{{"baseline", baseline::kernel_for, baseline::copy}};
#if defined(PC_X86_KERNELS)
  if (__builtin_cpu_supports("x86-64-v3")) sets.push_back({"avx2", avx2::kernel_for, avx2::copy});
  if (__builtin_cpu_supports("x86-64-v4")) sets.push_back({"avx512", avx512::kernel_for, avx512::copy});
#endif
  return sets;
}

}  // namespace test
}  // namespace pc
