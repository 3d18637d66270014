// Driver functions are looked up at run time: the module must load on machines without a driver.
#include <cuda.h>

#include <algorithm>

#include "base/cuda/device.h"
#include "base/cuda/driver.h"
#include "window/cuda_memory.h"

namespace pc::cuda {
namespace {

struct Driver {
  CUresult (*granularity)(size_t*, const CUmemAllocationProp*, CUmemAllocationGranularity_flags);
  CUresult (*create)(CUmemGenericAllocationHandle*, size_t, const CUmemAllocationProp*, unsigned long long);
  CUresult (*release)(CUmemGenericAllocationHandle);
  CUresult (*export_to)(void*, CUmemGenericAllocationHandle, CUmemAllocationHandleType, unsigned long long);
  CUresult (*import_from)(CUmemGenericAllocationHandle*, void*, CUmemAllocationHandleType);
  CUresult (*reserve)(CUdeviceptr*, size_t, size_t, CUdeviceptr, unsigned long long);
  CUresult (*free_address)(CUdeviceptr, size_t);
  CUresult (*map)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long);
  CUresult (*unmap)(CUdeviceptr, size_t);
  CUresult (*set_access)(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t);

  static const Driver& instance() {
    static const Driver driver;
    return driver;
  }

 private:
  Driver() {
    driver_function("cuMemGetAllocationGranularity", granularity);
    driver_function("cuMemCreate", create);
    driver_function("cuMemRelease", release);
    driver_function("cuMemExportToShareableHandle", export_to);
    driver_function("cuMemImportFromShareableHandle", import_from);
    driver_function("cuMemAddressReserve", reserve);
    driver_function("cuMemAddressFree", free_address);
    driver_function("cuMemMap", map);
    driver_function("cuMemUnmap", unmap);
    driver_function("cuMemSetAccess", set_access);
  }
};

void require(CUresult result, const char* what) {
  if (result != CUDA_SUCCESS) throw SystemFailure(std::string(what) + ": driver error " + std::to_string(result));
}

CUmemAllocationProp properties(int device) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.location.id = device;
  return prop;
}

size_t rounded(int device, size_t bytes) {
  const CUmemAllocationProp prop = properties(device);
  size_t unit = 0;
  require(Driver::instance().granularity(&unit, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
          "cuMemGetAllocationGranularity");
  return (std::max<size_t>(bytes, 1) + unit - 1) / unit * unit;
}

// A handle mapped into the address space, readable and writable by `device`.
class MappedMemory : public DeviceMemory {
 public:
  MappedMemory(int device, size_t bytes, CUmemGenericAllocationHandle handle)
      : DeviceMemory(device, bytes), handle(handle) {
    const Driver& driver = Driver::instance();
    try {
      CUdeviceptr at = 0;
      require(driver.reserve(&at, bytes, 0, 0, 0), "cuMemAddressReserve");
      address_ = static_cast<uintptr_t>(at);
      require(driver.map(at, bytes, 0, handle, 0), "cuMemMap");
      mapped_ = true;
      CUmemAccessDesc access{};
      access.location = properties(device).location;
      access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
      require(driver.set_access(at, bytes, &access, 1), "cuMemSetAccess");
    } catch (...) {
      release();
      throw;
    }
  }
  ~MappedMemory() override { release(); }
  const CUmemGenericAllocationHandle handle;

 private:
  void release() {
    const Driver& driver = Driver::instance();
    const QuietlyOn on(device_);
    if (mapped_) (void)cudaDeviceSynchronize();  // unlike cudaFree, unmapping does not wait for kernels
    if (mapped_) (void)driver.unmap(address_, bytes_);
    if (address_ != 0) (void)driver.free_address(address_, bytes_);
    (void)driver.release(handle);
  }
  bool mapped_ = false;
};

}  // namespace

std::shared_ptr<DeviceMemory> allocate_vmm(int device, size_t bytes) {
  const OnDevice on(device);
  check(cudaFree(nullptr), "making the device's context");
  const size_t whole = rounded(device, bytes);
  const CUmemAllocationProp prop = properties(device);
  CUmemGenericAllocationHandle handle = 0;
  require(Driver::instance().create(&handle, whole, &prop, 0), "cuMemCreate");
  auto made = std::make_shared<MappedMemory>(device, whole, handle);
  OwnStream().clear(reinterpret_cast<void*>(made->address()), whole);
  return made;
}

int export_vmm(const DeviceMemory& memory) {
  const auto* mapped = dynamic_cast<const MappedMemory*>(&memory);
  if (mapped == nullptr) throw InvalidArgument("no memory of the driver's virtual memory management");
  int descriptor = -1;
  require(Driver::instance().export_to(&descriptor, mapped->handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
          "cuMemExportToShareableHandle");
  return descriptor;
}

std::shared_ptr<DeviceMemory> import_vmm(int device, int descriptor, size_t bytes) {
  const OnDevice on(device);
  check(cudaFree(nullptr), "making the device's context");
  CUmemGenericAllocationHandle handle = 0;
  require(Driver::instance().import_from(&handle, reinterpret_cast<void*>(static_cast<intptr_t>(descriptor)),
                                         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
          "cuMemImportFromShareableHandle");
  return std::make_shared<MappedMemory>(device, rounded(device, bytes), handle);
}

}  // namespace pc::cuda
