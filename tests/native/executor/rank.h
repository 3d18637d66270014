// One rank driven by a thread: its team, its arrays, and calls with known results.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cases.h"
#include "executor/cpu/team.h"

namespace pc::test {

// Sets tiles so small that a short array has several, unless the environment sets them.  Call first.
void use_small_tiles();

// The arithmetic of a call.  Always exact: small integers, also as floats, scaled by powers of two.
enum class Arithmetic { integers, scaled_floats, custom };

struct CallPlan {
  const Case* c;
  Arithmetic arithmetic;
  int64_t longest;  // elements of a chunk
  bool same_array;  // staged: one private array is input and output
  bool odd_one;     // windows: one rank uses private arrays, so that all must stage
  uint32_t number;  // of the call: part of the data
};

// The calls made for each case: several tiles, one element, nothing, every arithmetic, one array, ranks with different
// placements.
std::vector<CallPlan> calls_of(const Case& c, uint32_t first_number);

// Shared by all ranks of a run: a segment for the teams, one for the windows.
struct World {
  World(int32_t size, int64_t array_bytes);
  int32_t size;
  int64_t array_bytes;
  std::shared_ptr<Segment> control, windows;
  static constexpr int64_t kScratch = 1 << 16;
  static constexpr int64_t kSlots = 6;  // pairs of arrays of each rank; successive calls use different ones
};

// Ends the process, with exit code 1.
[[noreturn]] void give_up(const std::string& what);

// main() of a program `PROGRAM MODE SCHEDULES [ONLY [REPEATS]]`: run(mode, cases, repeats).
using RunCases = std::function<void(const std::string& mode, std::vector<Case> cases, int repeats)>;
int run_cases(int argc, char** argv, const RunCases& run);

// Calls body(calls of one case) for every case and repeat, the same on all ranks.
template <class Body>
void for_each_case(const std::vector<Case>& cases, int repeats, const Body& body) {
  uint32_t number = 0;
  for (int i = 0; i < repeats; ++i) {
    for (const Case& c : cases) {
      const auto calls = calls_of(c, number);
      number += static_cast<uint32_t>(calls.size());
      body(calls);
    }
  }
}

// Bytes of an array that is large enough for all cases.
int64_t array_bytes_for(const std::vector<Case>& cases);

class Rank {
 public:
  Rank(const World& world, int32_t rank, bool threads = true);

  // Fills the arrays and returns the call.
  Operation prepare(const CallPlan& call);
  // Compares the output with a plain reduction, and checks that the input is unchanged.  Returns the error, if any.
  std::string check(const CallPlan& call) const;

  Team team;

 private:
  struct Buffers {
    char* input;
    char* output;
  };
  uint8_t placement(const CallPlan& call) const;  // of this rank's arrays
  bool one_array(const CallPlan& call) const;
  std::shared_ptr<const Plan> make_plan(const CallPlan& call, uint8_t placement) const;
  void fill(const CallPlan& call, const Layout& layout, Buffers at) const;
  Buffers place(const CallPlan& call, const Layout& layout) const;
  char* window(int64_t slot, bool output) const;
  char* private_array(int64_t slot, bool output) const;

  const World& world_;
  mutable std::vector<char> private_;
};

}  // namespace pc::test
