#include "executor/cuda/custom/custom.h"

#include <cuda.h>

#include "base/cuda/deferred_free.h"
#include "base/cuda/device.h"
#include "base/cuda/driver.h"

// The LTO-IR of kernels.cu, embedded by cmake/custom.cmake: X(Dtype, program).  Booleans are bytes, 0 and 1.
#define PC_CUSTOM_PROGRAMS(X) \
  X(bool_, uint8)             \
  X(int8, int8)               \
  X(int16, int16)             \
  X(int32, int32)             \
  X(int64, int64)             \
  X(uint8, uint8)             \
  X(uint16, uint16)           \
  X(uint32, uint32)           \
  X(uint64, uint64)           \
  X(float32, float32)         \
  X(float64, float64)

#define PC_DECLARE(name, symbol) extern "C" const char pc_custom_##symbol##_begin[], pc_custom_##symbol##_end[];
PC_CUSTOM_PROGRAMS(PC_DECLARE)
#undef PC_DECLARE

namespace pc::cuda {
namespace {

struct Driver {
  CUresult (*load)(CUlibrary*, const void*, CUjit_option*, void**, unsigned, CUlibraryOption*, void**, unsigned);
  CUresult (*kernel)(CUkernel*, CUlibrary, const char*);
  CUresult (*unload)(CUlibrary);
  CUresult (*function)(CUfunction*, CUkernel);
  CUresult (*attribute)(int*, CUfunction_attribute, CUfunction);

  static const Driver& instance() {
    static const Driver driver;
    return driver;
  }

 private:
  Driver() {
    driver_function("cuLibraryLoadData", load, 12000);
    driver_function("cuLibraryGetKernel", kernel, 12000);
    driver_function("cuLibraryUnload", unload, 12000);
    driver_function("cuKernelGetFunction", function, 12000);
    driver_function("cuFuncGetAttribute", attribute);
  }
};

void require(CUresult result, const char* what) {
  if (result != CUDA_SUCCESS) throw SystemFailure(std::string(what) + ": driver error " + std::to_string(result));
}

class LinkedOperator : public CustomOperator {
 public:
  // The library is not bound to a device: it is loaded on a device when a kernel is first requested there.
  explicit LinkedOperator(const std::string& image) {
    const CaptureAside aside;
    check(cudaFree(nullptr), "cudaFree");  // initializes CUDA in this process
    const Driver& driver = Driver::instance();
    require(driver.load(&library_, image.data(), nullptr, nullptr, 0, nullptr, nullptr, 0), "cuLibraryLoadData");
    try {
      kernels_.schedule = find<ScheduleKernel>("pc_schedule");
      kernels_.low_latency = find<LowLatencyKernel>("pc_low_latency");
    } catch (...) {
      (void)driver.unload(library_);
      throw;
    }
  }
  ~LinkedOperator() override {
    free_when_idle(kAnyDevice, 0, [library = library_] {
      const CaptureAside aside;
      (void)Driver::instance().unload(library);
    });
  }
  LinkedOperator(const LinkedOperator&) = delete;
  Kernels kernels() const override { return kernels_; }
  void load(int device) const override {
    const OnDevice on(device);
    check(cudaFree(nullptr), "making the device's context");
    for (const CUkernel kernel :
         {reinterpret_cast<CUkernel>(kernels_.schedule), reinterpret_cast<CUkernel>(kernels_.low_latency)}) {
      CUfunction function = nullptr;
      int registers = 0;
      require(Driver::instance().function(&function, kernel), "cuKernelGetFunction");
      require(Driver::instance().attribute(&registers, CU_FUNC_ATTRIBUTE_NUM_REGS, function), "cuFuncGetAttribute");
    }
  }

 private:
  // The runtime's launch functions accept such a handle in place of a kernel's address.
  template <class F>
  F find(const char* name) const {
    CUkernel found = nullptr;
    require(Driver::instance().kernel(&found, library_, name), "cuLibraryGetKernel");
    return reinterpret_cast<F>(found);
  }

  CUlibrary library_ = nullptr;
  Kernels kernels_;
};

}  // namespace

std::string custom_program(Dtype dtype) {
  switch (dtype) {
#define PC_PROGRAM(name, symbol) \
  case Dtype::name: return {pc_custom_##symbol##_begin, pc_custom_##symbol##_end};
    PC_CUSTOM_PROGRAMS(PC_PROGRAM)
#undef PC_PROGRAM
    default: return {};
  }
}

std::shared_ptr<const CustomOperator> load_custom(Dtype, const std::string& image) {
  return std::make_shared<LinkedOperator>(image);
}

}  // namespace pc::cuda
