#pragma once

namespace pc {

// Hints to the processor that this is a spin-wait loop.
inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace pc
