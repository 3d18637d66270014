// A user-defined operator: the executor's kernels, linked with it at run time.
//
// nvcc compiles the kernels of an element type to LTO-IR with one undefined function, pc_operator (kernels.cu).
// Python compiles the user's function to it and links the two to a cubin (comm/cuda/operators.py).
#pragma once

#include <memory>
#include <string>

#include "dtype/table.h"
#include "executor/cuda/team.h"

namespace pc::cuda {

// The kernels of an element type without the operator: a fatbin of LTO-IR.  Empty: no user-defined operator supports
// it.
std::string custom_program(Dtype dtype);

// The linked operator.  Loading it on a device may wait until the device is idle.
std::shared_ptr<const CustomOperator> load_custom(Dtype dtype, const std::string& image);

}  // namespace pc::cuda
