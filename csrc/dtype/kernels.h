// Combining blocks of elements: k sources, reduced left to right, written to m targets.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/bits.h"
#include "dtype/table.h"

namespace pc {

// A user-defined operator: into[i] = f(into[i], from[i]) for i < count.
using CustomFunction = void (*)(void* into, const void* from, int64_t count);

// Applied in the accumulator's precision: x * prescale to raw contributions, (acc / divisor) * postscale to the final
// result.
struct Scaling {
  double prescale = 1.0;
  double divisor = 1.0;
  double postscale = 1.0;
  bool active() const { return prescale != 1.0 || divisor != 1.0 || postscale != 1.0; }
  // Equal factors give equal bits: plans are cached by them.
  bool operator==(const Scaling& other) const {
    return bits_of(prescale) == bits_of(other.prescale) && bits_of(divisor) == bits_of(other.divisor) &&
           bits_of(postscale) == bits_of(other.postscale);
  }
};

struct Block {
  const void* const* sources;  // k pointers, not null; a target may alias a source of the same block
  const bool* initial;         // k flags: the source is a raw contribution
  void* const* targets;        // m pointers
  int k;
  int m;
  size_t count;    // elements
  bool complete;   // the result holds every contribution
  const Scaling* scaling;
  CustomFunction custom;
  const bool* streamed = nullptr;  // m flags: the target is not read soon, bypass the caches; or null
  const double* weights = nullptr;  // k factors, for Kernel::weighted
};

using Combine = void (*)(const Block&);

// How one (dtype, operator) is combined on this machine.
struct Kernel {
  Combine plain = nullptr;   // no scaling
  Combine scaled = nullptr;  // with scaling; null if the operator does not support it
  Combine weighted = nullptr;  // the sum of the sources, each times its weight; null if not the sum of a real type
  bool normalises = false;   // applies even to a single contribution (land, lor)
};

// The kernel for the best instruction set of this machine, up to environment().isa.
// A null `plain` means that the operator does not support the type.
Kernel kernel_for(Dtype dtype, Operator op);

// "baseline", "avx2" or "avx512": what kernel_for chooses from.
const char* instruction_set();

// Copies memory that does not overlap.  Not by memcpy if large: glibc's uses an instruction (rep movsb) that on AMD Zen
// 3 and 4 takes 5 to 10 times longer if the two addresses are close to each other modulo a page
// (https://sourceware.org/bugzilla/show_bug.cgi?id=30994).
void copy_bytes(void* to, const void* from, size_t bytes);

// Copies one source to all targets; a target that is the source is skipped.
void copy_block(const Block& block, size_t element_size);

// Applies a user-defined operator in blocks that stay in the L1 cache.
void combine_custom(const Block& block, size_t element_size);

}  // namespace pc
