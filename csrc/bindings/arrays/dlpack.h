// The DLPack structures (versions 0.8 and 1.x), as specified in
// https://dmlc.github.io/dlpack/latest/c_api.html
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/checked.h"
#include "dtype/table.h"

namespace pc::dlpack {

enum DeviceType : int32_t { device_cpu = 1, device_cuda_host = 3 };
enum TypeCode : uint8_t {
  code_int = 0,
  code_uint = 1,
  code_float = 2,
  code_bfloat = 4,
  code_complex = 5,
  code_bool = 6,
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

// What a library has exported; freed with its owner.
struct Export {
  std::unique_ptr<void, void (*)(void*)> held;
  const Tensor* tensor;
  bool read_only;  // or a copy: writes would be lost
};

template <class M>
void free_export(void* managed) {
  auto* m = static_cast<M*>(managed);
  if (m->deleter != nullptr) m->deleter(m);
}

// These take it over.
inline Export owned(ManagedVersioned* m) {
  return {{m, free_export<ManagedVersioned>}, &m->tensor, (m->flags & (flag_read_only | flag_copied)) != 0};
}
inline Export owned(Managed* m) { return {{m, free_export<Managed>}, &m->tensor, false}; }
// Throws py::type_error, unless it is an unused capsule.
inline Export owned(const pybind11::object& capsule) {
  const char* name = PyCapsule_GetName(capsule.ptr());
  const bool versioned = name != nullptr && std::string_view(name) == "dltensor_versioned";
  if (name == nullptr || (!versioned && std::string_view(name) != "dltensor"))
    throw pybind11::type_error("__dlpack__ did not return an unused DLPack capsule");
  void* managed = PyCapsule_GetPointer(capsule.ptr(), name);
  if (versioned && static_cast<ManagedVersioned*>(managed)->major != 1)
    throw pybind11::type_error("DLPack version " + std::to_string(static_cast<ManagedVersioned*>(managed)->major) +
                               " is not supported");
  PyCapsule_SetName(capsule.ptr(), versioned ? "used_dltensor_versioned" : "used_dltensor");
  return versioned ? owned(static_cast<ManagedVersioned*>(managed)) : owned(static_cast<Managed*>(managed));
}

// A library's C interface to its arrays (type.__dlpack_c_exchange_api__); only what is used here.
struct ExchangeApi {
  uint32_t major, minor;
  void* previous;
  void* allocate;
  int (*export_owned)(void* object, ManagedVersioned** out);  // 0, or -1 with a Python exception
  void* import_owned;
  int (*describe)(void* object, Tensor* out);                 // borrowed; likewise
};

// The element types that collectives support.
struct TypeRow {
  uint8_t code, bits;
  Dtype dtype;
};
inline constexpr TypeRow kTypes[] = {
#define PC_ROW(name, bytes, code, typestr) {code, 8 * bytes, Dtype::name},
    PC_EXCHANGED_TYPES(PC_ROW)
#undef PC_ROW
};

// Dtype::count: unsupported.
inline Dtype element_type(DataType type) {
  for (const TypeRow& row : kTypes)
    if (row.code == type.code && row.bits == type.bits && type.lanes == 1) return row.dtype;
  return Dtype::count;
}

// The error message for a type that element_type does not support.
inline std::string refusal(DataType type) {
  const std::string bits = std::to_string(type.bits);
  return "no collective takes this element type (" +
         (type.code == code_complex ? "complex" + bits
                                    : "DLPack code " + std::to_string(type.code) + ", " + bits + " bits") +
         ")";
}

inline bool contiguous(const Tensor& t) {
  if (t.strides == nullptr) return true;
  for (int32_t d = 0; d < t.ndim; ++d)
    if (t.shape[d] == 0) return true;
  int64_t expected = 1;
  for (int32_t d = t.ndim - 1; d >= 0; --d) {
    if (t.shape[d] != 1 && t.strides[d] != expected) return false;
    expected = checked_mul(expected, t.shape[d], "the array's shape");
  }
  return true;
}

// Throws InvalidArgument for an impossible shape: negative extents, or extents whose product is too large.
inline int64_t count_of(const Tensor& t, size_t element) {
  if (t.ndim < 0 || (t.ndim > 0 && t.shape == nullptr)) throw InvalidArgument("the array has no shape");
  return checked_count(std::span(t.shape, static_cast<size_t>(t.ndim)), static_cast<int64_t>(element),
                       "the array's shape");
}

}  // namespace pc::dlpack
