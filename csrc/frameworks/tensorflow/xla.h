// Calls from functions that XLA has compiled.
#pragma once

#include "bindings/bindings.h"

namespace pc::tensorflow {

void bind_xla(py::module_& m);

}  // namespace pc::tensorflow
