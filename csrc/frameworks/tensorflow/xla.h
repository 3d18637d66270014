// Calls from functions that XLA has compiled.
#pragma once

#include <string>

#include "bindings/bindings.h"

namespace pc::tensorflow {

// Adds a target for custom calls on the CPU to TensorFlow's XLA.  Throws SystemFailure if a function is missing.
void define_xla_target(const std::string& library, const std::string& name, const py::function& signature,
                       const py::function& run);

}  // namespace pc::tensorflow
