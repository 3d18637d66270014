#define PC_ISA avx512
#include "dtype/kernels_impl.h"
