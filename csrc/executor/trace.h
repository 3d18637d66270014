// The steps of calls as they are executed, for a timeline.
#pragma once

#include <cstdint>
#include <vector>

namespace pc {

struct TracedWait {
  int32_t peer;
  uint64_t value;  // of the peer's counter
};

struct TracedStep {
  int64_t begin, end;  // nanoseconds of the steady clock: reading, reducing and writing
  int32_t chunk;
  int64_t tile;
  std::vector<int32_t> sources, targets;  // ranks
  uint64_t value;                         // the rank's counter afterwards
  std::vector<int32_t> consumers;         // ranks that wait for exactly that value
  std::vector<TracedWait> waits;
};

using StepTrace = std::vector<TracedStep>;

}  // namespace pc
