// What the binding files share: one file per class, each with one function that registers it.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>

#include "dtype/table.h"
#include "schedule/schedule.h"
#include "window/segment.h"

namespace py = pybind11;

namespace pc {

// A contiguous run of elements, wherever it came from.
struct ArrayView {
  char* data = nullptr;
  int64_t count = 0;  // elements
  Dtype dtype = Dtype::count;
  bool writable = false;
};

// CPU memory obtained through DLPack.  Holds the producer's capsule.
class Buffer {
 public:
  // Throws TypeError, ValueError or BufferError for what cannot be used, with the reason.
  explicit Buffer(py::object array);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  ArrayView view;

 private:
  void* managed_ = nullptr;
  bool versioned_ = false;
};

// The elements of a NumPy array or a Buffer.  Throws py::type_error for anything else or for an unknown
// element type, and py::value_error for an array that is not C-contiguous.
ArrayView view_of(py::handle array, const char* what);
// Reads an array of a library that describes its arrays to C code (torch) without taking hold of it; false where that
// does not go.  Throws as Buffer does.
bool glance(py::handle array, ArrayView& view);
bool is_numpy(py::handle array);
Dtype dtype_of(py::handle descriptor);  // a numpy.dtype; Dtype::count if there is no such element type

// Sets the Python error that a C++ exception stands for; rethrows what it does not know.
void translate(std::exception_ptr pointer);

void bind_array(py::module_& m);
void bind_dlpack(py::module_& m);
void bind_engine(py::module_& m);
void bind_fast_path(py::module_& m);
void bind_handle(py::module_& m);
void bind_ledger(py::module_& m);
void bind_schedule(py::module_& m);
void bind_segment(py::module_& m);
void bind_tables(py::module_& m);
void bind_team(py::module_& m);

}  // namespace pc
