// Huge pages for memory that is about to be written for the first time.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>

namespace pc {

// Asks the kernel for huge pages where memory has none yet: with pages of 4 KiB the page faults of a new array take
// several times longer than writing it.  Only for arrays that are large; a hint, whose refusal changes nothing.
inline void prefer_huge_pages(void* memory, size_t bytes) {
  constexpr size_t kSmallest = 4U << 20, kPage = 4096;
  if (bytes < kSmallest) return;
  const auto begin = (reinterpret_cast<uintptr_t>(memory) + kPage - 1) / kPage * kPage;
  const auto end = (reinterpret_cast<uintptr_t>(memory) + bytes) / kPage * kPage;
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

}  // namespace pc
