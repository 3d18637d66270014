#define PC_ISA avx2
#include "dtype/kernels_impl.h"
