// A call whose signature is fixed: planned once, with the GIL; then run any number of times, on any memory, without it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bindings/calls/team_call.h"

namespace pc {

class FixedCall {
 public:
  // The arguments as for TeamCall::call; `team`: a TeamCall's Python object, which is kept alive.  `count`: elements of
  // the rank's arrays, where `counts` does not determine them.  Needs the GIL.
  // Throws as TeamCall::call does for arguments that it would refuse.
  FixedCall(const py::object& team, Collective collective, Dtype dtype, int64_t count, int32_t root,
            const py::object& op, std::vector<int64_t> counts, std::string note, const py::object& timeout);

  // What this rank passes, in bytes; -1: no such array.
  int64_t input_bytes() const { return input_bytes_; }
  int64_t output_bytes() const { return output_bytes_; }

  // Blocks until the call has completed.  The caller must not hold the GIL.  Throws CommunicatorFault.
  void run(const void* input, void* output) const;
  // Runs a message to one rank and one from another at the same time: ranks that all send first would wait for each
  // other.
  static void run_both(const FixedCall& send, const void* input, const FixedCall& receive, void* output);

 private:
  Operation operation(const void* input, void* output) const;

  TeamCall* call_;
  std::shared_ptr<Team> team_;
  std::shared_ptr<const Plan> plan_;
  bool may_use_windows_;
  int64_t input_bytes_ = -1, output_bytes_ = -1;
  std::chrono::duration<double> timeout_;
};

}  // namespace pc
