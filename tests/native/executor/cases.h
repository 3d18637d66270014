// Compiled schedules as written by dump_schedules.py, and a collective's initial and final data.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "executor/control.h"
#include "schedule/schedule.h"

namespace pc::test {

// One topology x collective x root x placement x number of ranks.
struct Case {
  std::string name;
  Collective collective;
  int32_t size;
  int32_t root;       // 0 if not applicable
  uint8_t placement;  // Placement bits
  std::vector<std::shared_ptr<const Schedule>> ranks;
  std::vector<std::shared_ptr<const Schedule>> staged;  // the same for private arrays

  int32_t chunks() const { return ranks[0]->view().chunks(); }
  bool is(uint8_t bit) const { return (placement & bit) != 0; }
  const Traits& row() const { return traits(collective); }
  bool reduces() const { return row().reduces; }
  bool in_blocks() const { return row().in_blocks(); }
  bool starts(int32_t rank, int32_t chunk) const { return row().starts(rank, chunk, size, root); }
  bool ends(int32_t rank, int32_t chunk) const { return row().ends(rank, chunk, size, root); }
};

// The cases whose name contains `only`.  Throws std::runtime_error if the file cannot be read or no case is left.
std::vector<Case> read_cases(const std::string& path, const std::string& only = "");

// Chunks of about `longest` elements each: of different lengths, some zero.
Layout layout_for(const Case& c, int64_t longest);

}  // namespace pc::test
