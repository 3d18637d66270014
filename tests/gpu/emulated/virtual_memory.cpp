// The driver's virtual memory management, and its lookup through the runtime.
#include "machine.h"

using namespace pc_emulated;

namespace {

CUresult mem_granularity(size_t* bytes, const CUmemAllocationProp*, CUmemAllocationGranularity_flags) {
  *bytes = 1 << 16;
  return CUDA_SUCCESS;
}
CUresult mem_create(CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp* prop,
                    unsigned long long) {
  if (flag("PC_EMULATED_NO_VMM")) return CUDA_ERROR_NOT_SUPPORTED;
  const int fd = make_shared(bytes);
  if (fd < 0) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::lock_guard lock(state().mutex);
  *handle = state().next_handle++;
  state().handles[*handle] = {bytes, fd, prop->location.id, false};
  return CUDA_SUCCESS;
}
CUresult mem_release(CUmemGenericAllocationHandle handle) {
  const std::lock_guard lock(state().mutex);
  const auto found = state().handles.find(handle);
  if (found == state().handles.end()) return CUDA_ERROR_INVALID_VALUE;
  close(found->second.fd);
  state().handles.erase(found);
  return CUDA_SUCCESS;
}
CUresult mem_export(void* into, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType, unsigned long long) {
  const std::lock_guard lock(state().mutex);
  *static_cast<int*>(into) = dup(state().handles.at(handle).fd);
  return CUDA_SUCCESS;
}
CUresult mem_import(CUmemGenericAllocationHandle* handle, void* shared, CUmemAllocationHandleType) {
  int fd = dup(static_cast<int>(reinterpret_cast<intptr_t>(shared)));
  if (fd < 0) return CUDA_ERROR_INVALID_VALUE;
  const off_t bytes = lseek(fd, 0, SEEK_END);
  if (flag("PC_EMULATED_BROKEN_PEER")) {
    close(fd);
    fd = make_shared(static_cast<size_t>(bytes));
  }
  const std::lock_guard lock(state().mutex);
  *handle = state().next_handle++;
  state().handles[*handle] = {static_cast<size_t>(bytes), fd, device, true};
  return CUDA_SUCCESS;
}
CUresult mem_reserve(CUdeviceptr* at, size_t bytes, size_t, CUdeviceptr, unsigned long long) {
  void* found = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  *at = reinterpret_cast<CUdeviceptr>(found);
  return found == MAP_FAILED ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}
CUresult mem_free_address(CUdeviceptr at, size_t bytes) {
  munmap(reinterpret_cast<void*>(at), bytes);
  return CUDA_SUCCESS;
}
CUresult mem_map(CUdeviceptr at, size_t bytes, size_t, CUmemGenericAllocationHandle handle, unsigned long long) {
  const std::lock_guard lock(state().mutex);
  const Allocation& from = state().handles.at(handle);
  void* found = mmap(reinterpret_cast<void*>(at), bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, from.fd, 0);
  if (found == MAP_FAILED) return CUDA_ERROR_INVALID_VALUE;
  state().allocations[reinterpret_cast<char*>(at)] = {bytes, -1, from.device, true};
  return CUDA_SUCCESS;
}
CUresult mem_unmap(CUdeviceptr at, size_t bytes) {
  const std::lock_guard lock(state().mutex);
  state().allocations.erase(reinterpret_cast<char*>(at));
  (void)mmap(reinterpret_cast<void*>(at), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1,
             0);
  return CUDA_SUCCESS;
}
CUresult mem_access(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t) { return CUDA_SUCCESS; }

}  // namespace

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* status) {
  static const std::map<std::string, void*> known{
      {"cuMemGetAllocationGranularity", reinterpret_cast<void*>(mem_granularity)},
      {"cuMemCreate", reinterpret_cast<void*>(mem_create)},
      {"cuMemRelease", reinterpret_cast<void*>(mem_release)},
      {"cuMemExportToShareableHandle", reinterpret_cast<void*>(mem_export)},
      {"cuMemImportFromShareableHandle", reinterpret_cast<void*>(mem_import)},
      {"cuMemAddressReserve", reinterpret_cast<void*>(mem_reserve)},
      {"cuMemAddressFree", reinterpret_cast<void*>(mem_free_address)},
      {"cuMemMap", reinterpret_cast<void*>(mem_map)},
      {"cuMemUnmap", reinterpret_cast<void*>(mem_unmap)},
      {"cuMemSetAccess", reinterpret_cast<void*>(mem_access)},
  };
  const auto found = known.find(symbol);
  *function = found == known.end() ? nullptr : found->second;
  *status = found == known.end() ? cudaDriverEntryPointSymbolNotFound : cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
