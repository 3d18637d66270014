// The kernels that a user-defined operator is linked with; compiled to LTO-IR once per element type, PC_ELEMENT.
#include "executor/cuda/kernels/kernels_impl.h"

namespace pc::cuda {

using Custom = PC_ELEMENT;

template <class T>
struct Passed {
  using type = std::make_unsigned_t<T>;
};
template <> struct Passed<float> { using type = float; };
template <> struct Passed<double> { using type = double; };

}  // namespace pc::cuda

// The user's function.  Integers are passed by their bits: the upper bits of short ones are unspecified.
extern "C" __device__ pc::cuda::Passed<pc::cuda::Custom>::type pc_operator(pc::cuda::Passed<pc::cuda::Custom>::type,
                                                                           pc::cuda::Passed<pc::cuda::Custom>::type);

namespace pc::cuda {

struct Linked {
  PC_FN Custom first(Custom a) const { return a; }
  PC_FN Custom apply(Custom a, Custom b) const {
    using P = Passed<Custom>::type;
    return static_cast<Custom>(pc_operator(static_cast<P>(a), static_cast<P>(b)));
  }
};

// Never scaled: such calls are refused, as on the CPU.
struct CustomElements {
  static constexpr Limit limit = sizeof(Custom) > 1 ? Limit::memory : Limit::mixed;
  using Element = Custom;
  using A = Custom;
  Linked op;
  PC_FN CustomElements(int32_t, const ScaleFactors&) {}
  PC_FN A load(Element v, bool) const { return v; }
  PC_FN Element store(A a, bool) const { return a; }
};

}  // namespace pc::cuda

extern "C" __global__ void __launch_bounds__(pc::cuda::kThreads, 1)
    pc_schedule(const __grid_constant__ pc::cuda::Arguments a) {
  pc::cuda::schedule_block<pc::cuda::CustomElements>(a);
}

extern "C" __global__ void __launch_bounds__(pc::cuda::kThreads, 1)
    pc_low_latency(const __grid_constant__ pc::cuda::LowLatencyArguments a) {
  pc::cuda::low_latency_block<pc::cuda::CustomElements>(a);
}
