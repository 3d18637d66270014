// Compiled schedules as dump_schedules.py writes them, and what a collective starts from and ends with.
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
  int32_t root;       // 0 where the collective has none
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

// Those whose name contains `only`.  Throws std::runtime_error if the file cannot be read or nothing is left.
std::vector<Case> read_cases(const std::string& path, const std::string& only = "");

// Chunks of about `longest` elements each: never all of one length, some of length zero.
Layout layout_for(const Case& c, int64_t longest);

}  // namespace pc::test
