// A user's own operator: the executor's kernels, linked with it at run time.
//
// nvcc leaves the kernels of an element type as LTO-IR with one function missing, pc_operator (custom_kernels.cu).
// Python compiles the user's function to it and links the two to a cubin (comm/cuda/operators.py).
#pragma once

#include <memory>
#include <string>

#include "dtype/table.h"
#include "executor/cuda/team.h"

namespace pc::cuda {

// The kernels of an element type without the operator: a fatbin of LTO-IR.  Empty: a user's operator does not take it.
std::string custom_program(Dtype dtype);

// What came of linking.  Loading it on a device may wait until the device is idle.
std::shared_ptr<const CustomOperator> load_custom(Dtype dtype, const std::string& image);

}  // namespace pc::cuda
