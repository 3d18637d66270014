// A user-defined operator on CPU threads: nothing is linked, kernels call the C function that numba compiled for the
// CPU.
#include "executor/cuda/custom/custom.h"

#include <cstring>
#include <type_traits>

#include "base/cuda/device.h"
#include "executor/cuda/kernels/kernels_impl.h"

namespace pc::cuda {
namespace {

thread_local uint64_t called;  // void f(T* into, const T* from, int64_t count)

template <class T>
struct Calling {
  T first(T a) const { return a; }
  T apply(T a, T b) const {
    reinterpret_cast<void (*)(T*, const T*, int64_t)>(called)(&a, &b, 1);
    return a;
  }
};

// As in executor/cuda/custom/kernels.cu.
template <class T>
struct CalledElements {
  static constexpr Limit limit = Limit::mixed;
  using Element = T;
  using A = T;
  Calling<T> op;
  CalledElements(int32_t, const ScaleFactors&) {}
  A load(T v, bool) const { return v; }
  T store(A a, bool) const { return a; }
};

template <class T>
void call_schedule(Arguments a) {
  called = a.custom;
  schedule_block<CalledElements<T>>(a);
}

template <class T>
void call_low_latency(LowLatencyArguments a) {
  called = a.custom;
  low_latency_block<CalledElements<T>>(a);
}

class CalledOperator : public CustomOperator {
 public:
  CalledOperator(Kernels kernels, uint64_t address) : kernels_(kernels), address_(address) {}
  Kernels kernels() const override { return kernels_; }
  uint64_t address() const override { return address_; }
  void load(int) const override {
    if (kernels_.schedule == nullptr) return;
    load_kernel(kernels_.schedule);
    load_kernel(kernels_.low_latency);
  }

 private:
  Kernels kernels_;
  uint64_t address_;
};

template <class T>
Kernels calling() {
  if constexpr (std::is_arithmetic_v<T>) return {call_schedule<T>, call_low_latency<T>};
  else if constexpr (std::is_same_v<T, boolean>) return calling<uint8_t>();
  else return {};
}

}  // namespace

std::string custom_program(Dtype) { return {}; }

// `image`: the function's address.
std::shared_ptr<const CustomOperator> load_custom(Dtype dtype, const std::string& image) {
  uint64_t address = 0;
  if (image.size() != sizeof address) throw InvalidArgument("the emulated runtime takes an address");
  std::memcpy(&address, image.data(), sizeof address);
  Kernels kernels;
  switch (dtype) {
#define PC_CASE(name, type, kind) \
  case Dtype::name: kernels = calling<type>(); break;
    PC_DTYPES(PC_CASE)
#undef PC_CASE
    default: break;
  }
  return std::make_shared<CalledOperator>(kernels, address);
}

}  // namespace pc::cuda
