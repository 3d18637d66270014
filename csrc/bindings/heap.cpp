// NumPy arrays in the heap of this process: the functions with which NumPy allocates, and how it is told to use them.
#include "window/heap.h"

#include <pybind11/numpy.h>
#include <pybind11/typing.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "bindings/bindings.h"

namespace pc {
namespace {

// NumPy's `PyDataMem_Handler` (NEP 49), of NumPy 1.22 and later.
struct NumpyAllocator {
  void* context;
  void* (*allocate)(void* context, size_t bytes);
  void* (*allocate_zeroed)(void* context, size_t count, size_t element);
  void* (*resize)(void* context, void* at, size_t bytes);
  void (*release)(void* context, void* at, size_t bytes);
};

struct NumpyHandler {
  char name[127];
  uint8_t version;
  NumpyAllocator allocator;
};

// NumPy's frames know no exceptions: none leaves what it calls.

// Null: small, or the heap has no room.
void* in_heap(size_t bytes, bool& zeroed) noexcept try {
  Heap* const heap = bytes < Heap::kLeast ? nullptr : Heap::existing();
  return heap == nullptr ? nullptr : heap->allocate(bytes, zeroed);
} catch (const std::bad_alloc&) {
  return nullptr;
}

void* allocate(void*, size_t bytes) noexcept {
  bool zeroed = false;
  void* const found = in_heap(bytes, zeroed);
  return found != nullptr ? found : std::malloc(bytes);
}

void* allocate_zeroed(void*, size_t count, size_t element) noexcept {
  size_t bytes = 0;
  if (__builtin_mul_overflow(count, element, &bytes)) return nullptr;
  bool zeroed = false;
  void* const found = in_heap(bytes, zeroed);
  if (found == nullptr) return std::calloc(count, element);
  return zeroed ? found : std::memset(found, 0, bytes);
}

void release(void*, void* at, size_t) noexcept {
  if (Heap::owned(at)) Heap::free(at);
  else std::free(at);
}

void* resize(void*, void* at, size_t bytes) noexcept {
  if (!Heap::owned(at)) return std::realloc(at, bytes);
  void* const moved = allocate(nullptr, bytes);
  if (moved == nullptr) return nullptr;
  std::memcpy(moved, at, std::min(bytes, Heap::room(at)));
  Heap::free(at);
  return moved;
}

NumpyHandler handler{"pycollective", 1, {nullptr, allocate, allocate_zeroed, resize, release}};

// Its place in the table of NumPy's functions, of which no extension without NumPy's headers knows the names.
constexpr size_t kSetHandler = 304;

py::object set_handler(const py::object& capsule) {
  using SetHandler = PyObject* (*)(PyObject*);
  const py::object table =
      py::module_::import(py::hasattr(py::module_::import("numpy"), "_core") ? "numpy._core._multiarray_umath"
                                                                             : "numpy.core._multiarray_umath")
          .attr("_ARRAY_API");
  auto* const functions = static_cast<void**>(PyCapsule_GetPointer(table.ptr(), nullptr));
  if (functions == nullptr) throw py::error_already_set();
  PyObject* const before = reinterpret_cast<SetHandler>(functions[kSetHandler])(capsule.ptr());
  if (before == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(before);
}

py::object allocate_in_heap() {
  Heap::of_process();
  return set_handler(py::capsule(&handler, "mem_handler"));
}

void* pointer(uintptr_t address) { return reinterpret_cast<void*>(address); }

}  // namespace

void bind_heap(py::module_& m) {
  m.def("allocate_in_heap", &allocate_in_heap,
        "Let NumPy allocate large arrays in the heap of this process, in this context; returns what allocated before.");
  m.def("set_numpy_allocator", &set_handler, py::arg("handler"), "Let NumPy allocate with what was returned before.");
  m.def(
      "heap_bytes",
      [] {
        const Heap* const heap = Heap::existing();
        return heap == nullptr ? std::pair<size_t, size_t>() : std::pair(heap->used(), heap->retained());
      },
      "Bytes of the heap's arrays, and of the memory that it takes.");
  m.def("is_in_heap", [](uintptr_t address) { return Heap::owned(pointer(address)); }, py::arg("address"));
  m.def(
      "adopt_in_heap",
      [](size_t nbytes, const py::typing::Callable<uintptr_t()>& provide) {
        return Heap::of_process().adopt(nbytes, [&] { return pointer(provide().cast<uintptr_t>()); });
      },
      py::arg("nbytes"), py::arg("provide"),
      "Move memory, a mapping of its own whose address provide() returns, into the heap of this process; it keeps its "
      "address. False: no room, and it was not called.");
  m.def(
      "abandon_in_heap", [](uintptr_t address) { Heap::abandon(pointer(address)); }, py::arg("address"),
      "Free what was moved, before it is unmapped.");
}

}  // namespace pc
