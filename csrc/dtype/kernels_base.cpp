#define PC_ISA baseline
#include "dtype/kernels_impl.h"
