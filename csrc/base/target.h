// The target of a translation unit: nvcc compiles device code, g++ plain functions, never both.
#pragma once

#if defined(__CUDACC__)
#define PC_FN __device__ inline
#else
#define PC_FN inline
#endif
