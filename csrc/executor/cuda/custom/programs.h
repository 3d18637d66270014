// The LTO-IR of kernels.cu for each element type, embedded in the module by cmake/custom.cmake.
#pragma once

// X(Dtype, program): booleans are bytes, 0 and 1.
#define PC_CUSTOM_PROGRAMS(X) \
  X(bool_, uint8)             \
  X(int8, int8)               \
  X(int16, int16)             \
  X(int32, int32)             \
  X(int64, int64)             \
  X(uint8, uint8)             \
  X(uint16, uint16)           \
  X(uint32, uint32)           \
  X(uint64, uint64)           \
  X(float32, float32)         \
  X(float64, float64)

extern "C" {
#define PC_DECLARE(name, symbol) extern const char pc_custom_##symbol##_begin[], pc_custom_##symbol##_end[];
PC_CUSTOM_PROGRAMS(PC_DECLARE)
#undef PC_DECLARE
}
