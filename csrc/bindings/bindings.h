// Shared by the binding files: one file per class, each with one function that registers it.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "dtype/table.h"
#include "schedule/call_arrays.h"
#include "schedule/schedule.h"
#include "window/segment.h"

namespace py = pybind11;

namespace pc {

// Elements with arbitrary strides.
struct StridedView {
  ArrayView elements;
  std::vector<int64_t> extents, strides;  // strides in bytes
};

// CPU memory obtained through DLPack.  Keeps the producer's export alive.
class Buffer {
 public:
  // Throws TypeError, ValueError or BufferError, with the reason, for unsupported arrays.  `strided`: accept an array
  // that is not C-contiguous, for calls that read it (see strided_view_of).
  explicit Buffer(py::object array, bool strided = false);
  explicit Buffer(const ArrayView& elements) : view(elements) {}  // which the caller keeps
  ~Buffer();  // not inlined: that makes calls on arrays of 8 bytes, which have none, 2% slower
  Buffer(const Buffer&) = delete;
  ArrayView view;
  std::vector<int64_t> extents, strides;  // in bytes; empty if the elements are contiguous

 private:
  std::unique_ptr<void, void (*)(void*)> held_{nullptr, nullptr};
};

// C-contiguous CPU memory that is read without Python.
struct PlainArray {
  ArrayView view;
  std::span<const int64_t> shape;  // the array's own; of a Buffer: unknown
};
// False: Python must adapt or refuse it.  Takes a numpy.ndarray, a tensor of torch, to read also an array of another
// library with DLPack's C exchange API, and to write also a Buffer.
bool read_plain(py::handle array, bool writes, PlainArray& plain);
bool read_plain_tensor(py::handle array, bool writes, PlainArray& plain);  // of the libraries with the exchange API
bool is_plain_tensor(py::handle array);  // exactly torch.Tensor or its Parameter
// Whether C code makes the results of x's library: as a numpy.ndarray or a plain tensor.
bool makes_plain(py::handle x);
// Makes an uninitialized array of x's type and library, and reads it; null if Python must make it: always if
// makes_plain(x) is false, else in unusual modes of torch.
py::object new_like(py::handle x, std::span<const int64_t> shape, PlainArray& made);
py::object new_tensor_like(py::handle x, std::span<const int64_t> shape, PlainArray& made);
// What keeps the memory of an array in place: the array itself, or the storage of a tensor, which can exchange it.
py::object pinned(py::handle array);
py::object storage_of(py::handle tensor);

// The elements of a NumPy array or a Buffer.  Throws py::type_error for anything else or for an unknown
// element type, and py::value_error for an array that is not C-contiguous.
ArrayView view_of(py::handle array, const char* what);
// Nothing if view_of accepts the array.
std::optional<StridedView> strided_view_of(py::handle array, const char* what);
// Reads an array of a library that describes its arrays to C code (torch) without taking a reference; false if that is
// not possible.  Throws as Buffer does.
bool glance(py::handle array, ArrayView& view);
bool is_numpy(py::handle array);  // exactly numpy.ndarray: a subclass may carry more than its elements
Dtype dtype_of(py::handle descriptor);  // a numpy.dtype; Dtype::count if unsupported

// The enumerator of this name; Enum::count if there is none.
template <class Enum>
Enum find_named(std::string_view name) {
  for (size_t i = 0; i < static_cast<size_t>(Enum::count); ++i)
    if (name == name_of(static_cast<Enum>(i))) return static_cast<Enum>(i);
  return Enum::count;
}
Collective collective_named(const std::string& name);  // throws InvalidArgument

// A call's timeout in seconds; None: the default.  Throws InvalidArgument or WrongType.
double read_timeout(py::handle timeout);
// An argument `timeout` that is not None; may be negative or NaN.  Throws WrongType.
double read_seconds(py::handle timeout);

// Throws py::type_error for None.
inline std::shared_ptr<Segment> required(std::shared_ptr<Segment> segment) {
  if (segment == nullptr) throw py::type_error("a Segment is needed, not None");
  return segment;
}

// Classes whose arguments must be initialized objects.  For an object created by `Class.__new__(Class)` pybind11 would
// pass memory on which no constructor has run, and for None a null pointer.
template <class T>
inline constexpr bool is_bound = false;

// The class in pycollective.errors.
const char* class_of(Fault fault);
// Sets the Python error that a C++ exception maps to; rethrows unknown ones.
void translate(std::exception_ptr pointer);
// The same for every exception, as pybind11 does for the functions that it dispatches.
void set_error(std::exception_ptr pointer);

void bind_allreduce_in_place(py::module_& m);
void bind_array(py::module_& m);
void bind_call_arrays(py::module_& m);
void bind_carriers(py::module_& m);
void bind_dlpack(py::module_& m);
void bind_engine(py::module_& m);
void bind_handle(py::module_& m);
void bind_ledger(py::module_& m);
void bind_methods(py::module_& m);
void bind_schedule(py::module_& m);
void bind_heap(py::module_& m);
void bind_segment(py::module_& m);
void bind_table_directory(py::module_& m);
void bind_tables(py::module_& m);
void bind_team(py::module_& m);
void bind_ucx(py::module_& m);
void bind_jax(py::module_& m);         // in csrc/frameworks/
void bind_tensorflow(py::module_& m);  // in csrc/frameworks/

}  // namespace pc

template <typename T>
class pybind11::detail::type_caster<T, std::enable_if_t<pc::is_bound<T>>> : public type_caster_base<T> {
 public:
  bool load(handle source, bool convert) {
    if (source.is_none()) return false;
    if (this->typeinfo != nullptr && PyObject_TypeCheck(source.ptr(), this->typeinfo->type) != 0) {
      auto* object = reinterpret_cast<instance*>(source.ptr());
      if (!object->get_value_and_holder(this->typeinfo).holder_constructed())
        throw type_error(std::string(this->typeinfo->type->tp_name) + ".__init__() has not been called");
    }
    return type_caster_base<T>::load(source, convert);
  }
};

namespace pc {
template <> inline constexpr bool is_bound<Schedule> = true;
template <> inline constexpr bool is_bound<Layout> = true;
template <> inline constexpr bool is_bound<Segment> = true;
template <> inline constexpr bool is_bound<Buffer> = true;
}  // namespace pc
