// Copies between device memory and pinned host memory, as the executor on the CPU uses them for arrays in device
// memory.
//
// They are implemented by pycollective._cuda and called by pycollective._core.  The two modules may be built by
// different compilers against different standard libraries: hence functions in a struct, and no objects of C++.
#pragma once

#include <cstdint>

namespace pc {

enum class CopyDirection : int32_t { to_host, to_device };

// Each direction has a stream of its own.  One thread at a time uses it.
struct DeviceCopies {
  void* self;
  // At least so many bytes of pinned memory, valid until the next call of this function; null: there are no more.
  char* (*memory)(void* self, uint64_t bytes);
  // Enqueues a copy; false: failed, see error().
  bool (*copy)(void* self, CopyDirection direction, void* into, const void* from, uint64_t bytes);
  // A point in the direction's stream, after all copies enqueued so far: 1, 2, ...; 0: failed.
  uint64_t (*mark)(void* self, CopyDirection direction);
  // Whether the point has been reached: 1, 0 or, after a failure, -1.
  int32_t (*reached)(void* self, CopyDirection direction, uint64_t mark);
  const char* (*error)(void* self);  // the reason for a failure
};

}  // namespace pc
