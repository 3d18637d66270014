// The steps of calls as they happen, for a timeline.
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
  int32_t sources, targets;
  uint64_t value;  // that the rank's counter has afterwards; 0: nobody waits for the step
  std::vector<TracedWait> waits;
};

using StepTrace = std::vector<TracedStep>;

}  // namespace pc
