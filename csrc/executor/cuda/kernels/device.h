// The few device operations that C++ does not have.  Two targets, one meaning: nvcc, with PTX instructions, and g++
// with tests/gpu/emulated, where the threads of a block are threads of the process.
//
// Memory model: a flag is stored with release and loaded with acquire, both at system scope, or at the GPU's if all
// ranks are in one launch (`gpu_scope`); a release by any thread of a block after a barrier covers everything the block
// wrote before it.  No fences, no volatile, no atomics on peers.
// Window memory is never `const __restrict__`: nvcc would read it through the non-coherent path.
#pragma once

#include <cstdint>

#include "executor/cuda/kernels/arguments.h"

#if !defined(__CUDACC__)
#include "device_emulation.h"
#endif

namespace pc::cuda {

#if defined(__CUDACC__)

PC_FN unsigned thread_index() { return threadIdx.x; }
PC_FN unsigned thread_count() { return blockDim.x; }
PC_FN unsigned block_index() { return blockIdx.x; }

// One uninitialized object per block and type.
template <class T>
PC_FN T& shared() {
  __shared__ alignas(16) unsigned char storage[sizeof(T)];
  return *reinterpret_cast<T*>(storage);
}

PC_FN void barrier() { __syncthreads(); }
PC_FN bool barrier_and(bool ok) { return __syncthreads_and(ok) != 0; }

PC_FN uint64_t load_flag(const uint64_t* at, bool gpu_scope) {
  uint64_t value;
#if defined(PC_TEST_RELAXED_FLAG)
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
#else
  if (gpu_scope) asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
  else asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
#endif
  return value;
}

PC_FN void store_flag(uint64_t* at, uint64_t value, bool gpu_scope) {
  if (gpu_scope) asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
  else asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}

// Words that the host may change or read while the kernel runs; no other data depends on them.
PC_FN uint32_t load_relaxed(const uint32_t* at) {
  uint32_t value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}

// Sets `at` from 0 to 1; true for the thread that did.
PC_FN bool claim(uint32_t* at) { return atomicCAS_system(at, 0u, 1u) == 0u; }

// Each 8 bytes arrive together with their flag, in any order: NCCL's LL protocol.
PC_FN void store_packet(void* at, Vector v) {
  asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(at),
               "l"(static_cast<uint64_t>(v.word[1]) << 32 | v.word[0]),
               "l"(static_cast<uint64_t>(v.word[3]) << 32 | v.word[2])
               : "memory");
}
PC_FN Vector load_packet(const void* at) {
  uint64_t low, high;
  asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];" : "=l"(low), "=l"(high) : "l"(at) : "memory");
  return {{static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32), static_cast<uint32_t>(high),
           static_cast<uint32_t>(high >> 32)}};
}

PC_FN uint64_t clock_ns() {
  uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

// Between two polls of a flag that has not arrived.
PC_FN void pause() { __nanosleep(20); }

#endif

PC_FN Vector load_vector(const char* at) {
#if defined(__CUDACC__) && defined(PC_TEST_CONST_RESTRICT)
  const uint4 v = __ldg(reinterpret_cast<const uint4*>(at));  // what const __restrict__ compiles to
  return {{v.x, v.y, v.z, v.w}};
#elif defined(PC_TEST_NARROW)
  const auto* half = reinterpret_cast<const volatile uint64_t*>(at);
  const uint64_t low = half[0], high = half[1];
  return {{static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32), static_cast<uint32_t>(high),
           static_cast<uint32_t>(high >> 32)}};
#else
  return *reinterpret_cast<const Vector*>(at);
#endif
}

PC_FN void store_vector(char* at, const Vector& v) { *reinterpret_cast<Vector*>(at) = v; }

}  // namespace pc::cuda
