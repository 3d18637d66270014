// The x86-64 level that this processor and its operating system support.  __builtin_cpu_supports reports this too, but
// some runtimes shipped with clang leave the data it reads zero, which would silently disable the vector kernels.
#pragma once

#include <cpuid.h>

#include <cstdint>

namespace pc {
namespace {

// 1: x86-64; 2: x86-64-v3 (AVX2); 3: x86-64-v4 (AVX-512): everything that -march of that name lets a compiler use.
inline int x86_level() {
  struct Leaf {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;  // zero if the processor has no such leaf
    explicit Leaf(unsigned number) { __get_cpuid_count(number, 0, &eax, &ebx, &ecx, &edx); }
  };
  const auto all = [](unsigned word, unsigned bits) { return (word & bits) == bits; };
  // From the processor manual; <cpuid.h> of gcc and of clang differ in some names.
  enum Leaf1Ecx : unsigned {
    sse3 = 1u << 0,
    ssse3 = 1u << 9,
    fma = 1u << 12,
    cx16 = 1u << 13,
    sse41 = 1u << 19,
    sse42 = 1u << 20,
    movbe = 1u << 22,
    popcnt = 1u << 23,
    osxsave = 1u << 27,
    avx = 1u << 28,
    f16c = 1u << 29,
  };
  enum Leaf7Ebx : unsigned {
    bmi1 = 1u << 3,
    avx2 = 1u << 5,
    bmi2 = 1u << 8,
    avx512f = 1u << 16,
    avx512dq = 1u << 17,
    avx512cd = 1u << 28,
    avx512bw = 1u << 30,
    avx512vl = 1u << 31,
  };
  enum ExtendedEcx : unsigned { lahf = 1u << 0, lzcnt = 1u << 5 };
  // State saved by the operating system: xmm and ymm; opmask, the upper halves of zmm0-15, zmm16-31.
  enum Saved : unsigned { ymm_state = 0x6, zmm_state = 0xe0 };

  const Leaf one(1), seven(7), extended(0x80000001u);
  if (!all(one.ecx, sse3 | ssse3 | fma | cx16 | sse41 | sse42 | movbe | popcnt | osxsave | avx | f16c)) return 1;
  if (!all(seven.ebx, bmi1 | avx2 | bmi2) || !all(extended.ecx, lahf | lzcnt)) return 1;
  unsigned saved, high;
  asm("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));  // available if osxsave is set
  if (!all(saved, ymm_state)) return 1;
  if (!all(seven.ebx, avx512f | avx512dq | avx512cd | avx512bw | avx512vl) || !all(saved, zmm_state)) return 2;
  return 3;
}

}  // namespace
}  // namespace pc
