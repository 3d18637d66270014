// Collectives as custom calls of XLA: run by the core directly, without the GIL and without copies.
#pragma once

#include <optional>

#include "bindings/calls/fixed_call.h"
#include "frameworks/jax/xla_ffi.h"

namespace pc::jax {

// What a custom call runs; `receive`: a message that arrives while `call` sends one.
struct PlannedCollective {
  FixedCall call;
  int64_t element;  // bytes
  std::optional<FixedCall> receive{};
};

// Returns the number by which custom calls refer to it.  It is never freed: executables may run as long as the process.
int64_t add(PlannedCollective collective);
// Throws InvalidArgument.
const PlannedCollective& collective_of(int64_t number);

xla::Error* run_collective(xla::CallFrame* frame);

}  // namespace pc::jax
