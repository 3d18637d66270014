// Every environment variable that the core reads: one table, shown by `pycollective doctor`.
#pragma once

#include <cstdint>

namespace pc {

// clang-format off
// X(field, name, default, meaning)
#define PC_ENVIRONMENT(X)                                                                          \
  X(timeout, "PYCOLLECTIVE_TIMEOUT", 300.0, "seconds a call waits for its peers")                  \
  X(spin_us, "PYCOLLECTIVE_SPIN_US", 2.0, "microseconds a wait spins before it yields")            \
  X(yield_us, "PYCOLLECTIVE_YIELD_US", 50.0, "microseconds a wait yields before it sleeps")        \
  X(scratch_bytes, "PYCOLLECTIVE_SCRATCH", 4194304.0, "bytes of shared scratch of each rank")      \
  X(tile_bytes, "PYCOLLECTIVE_TILE", 131072.0, "bytes of a tile on window arrays")                 \
  X(staged_tile_bytes, "PYCOLLECTIVE_STAGED_TILE", 131072.0, "bytes of a tile on staged arrays")    \
  X(cuda_scratch_bytes, "PYCOLLECTIVE_CUDA_SCRATCH", 67108864.0, "bytes of GPU scratch of each rank")   \
  X(cuda_tile_bytes, "PYCOLLECTIVE_CUDA_TILE", 524288.0, "most bytes of a tile on GPUs")            \
  X(isa, "PYCOLLECTIVE_ISA", 3.0, "widest vector code used: 1 baseline, 2 AVX2, 3 AVX-512")
// clang-format on

constexpr double kLongestTimeout = 1e9;  // seconds: longer than anybody waits, and within the clock's range

struct Environment {
#define PC_FIELD(field, name, fallback, meaning) double field = fallback;
  PC_ENVIRONMENT(PC_FIELD)
#undef PC_FIELD
};

// Read once, at first use.  Throws InvalidArgument for a value that is no number, or negative; names the variable.
const Environment& environment();

}  // namespace pc
