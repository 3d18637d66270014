// The DLPack structures (versions 0.8 and 1.x), as its specification lays them out:
// https://dmlc.github.io/dlpack/latest/c_api.html
#pragma once

#include <cstdint>

namespace pc::dlpack {

enum DeviceType : int32_t { device_cpu = 1, device_cuda_host = 3 };
enum TypeCode : uint8_t {
  code_int = 0,
  code_uint = 1,
  code_float = 2,
  code_bfloat = 4,
  code_bool = 6,
  code_float8_e4m3fn = 10,
  code_float8_e5m2 = 12,
};
enum Flags : uint64_t { flag_read_only = 1, flag_copied = 2 };

struct DataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};
struct Device {
  int32_t type;
  int32_t id;
};
struct Tensor {
  void* data;
  Device device;
  int32_t ndim;
  DataType dtype;
  int64_t* shape;
  int64_t* strides;  // null: C-contiguous
  uint64_t byte_offset;
};
struct Managed {
  Tensor tensor;
  void* context;
  void (*deleter)(Managed*);
};
struct ManagedVersioned {
  uint32_t major, minor;
  void* context;
  void (*deleter)(ManagedVersioned*);
  uint64_t flags;
  Tensor tensor;
};

}  // namespace pc::dlpack
