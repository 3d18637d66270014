// Reading NumPy arrays without NumPy's C API headers.
#include <pybind11/numpy.h>

#include <string>
#include <unordered_map>

#include "base/checked.h"
#include "bindings/bindings.h"

namespace pc {
namespace {

// numpy.dtype objects seen so far; each is kept alive, so that its address is not reused.
std::unordered_map<PyObject*, Dtype>& known_descriptors() {
  static auto* known = new std::unordered_map<PyObject*, Dtype>;
  return *known;
}

}  // namespace

Dtype dtype_of(py::handle descriptor) {
  auto& known = known_descriptors();
  const auto found = known.find(descriptor.ptr());
  if (found != known.end()) return found->second;
  const Dtype dtype = find_dtype(py::str(descriptor).cast<std::string>());
  if (dtype != Dtype::count && known.size() < 256) known.emplace(descriptor.inc_ref().ptr(), dtype);
  return dtype;
}

bool is_numpy(py::handle array) { return Py_TYPE(array.ptr()) == py::detail::npy_api::get().PyArray_Type_; }

namespace {

const Buffer* buffer_of(py::handle array, const char* what) {
  if (py::isinstance<Buffer>(array)) return &array.cast<const Buffer&>();
  throw py::type_error(std::string(what) + " is not an array: " + std::string(py::str(py::type::of(array))));
}

}  // namespace

ArrayView view_of(py::handle array, const char* what) {
  if (!is_numpy(array)) {
    const Buffer* buffer = buffer_of(array, what);
    if (!buffer->extents.empty()) throw py::value_error(std::string(what) + " is not C-contiguous");
    return buffer->view;
  }
  const auto* proxy = py::detail::array_proxy(array.ptr());
  ArrayView view;
  view.dtype = dtype_of(proxy->descr);
  if (view.dtype == Dtype::count)
    throw py::type_error(std::string(what) + " has element type " + std::string(py::str(py::handle(proxy->descr))) +
                         ", which no collective takes");
  if ((proxy->flags & py::detail::npy_api::NPY_ARRAY_C_CONTIGUOUS_) == 0)
    throw py::value_error(std::string(what) + " is not C-contiguous");
  view.data = proxy->data;
  view.writable = (proxy->flags & py::detail::npy_api::NPY_ARRAY_WRITEABLE_) != 0;
  view.count = 1;
  for (int d = 0; d < proxy->nd; ++d) view.count *= proxy->dimensions[d];  // NumPy has checked that the bytes fit
  return view;
}

std::optional<StridedView> strided_view_of(py::handle array, const char* what) {
  if (!is_numpy(array)) {
    const Buffer* buffer = buffer_of(array, what);
    if (buffer->extents.empty()) return std::nullopt;
    return StridedView{buffer->view, buffer->extents, buffer->strides};
  }
  const auto* proxy = py::detail::array_proxy(array.ptr());
  if ((proxy->flags & py::detail::npy_api::NPY_ARRAY_C_CONTIGUOUS_) != 0) return std::nullopt;
  StridedView found;
  found.elements.dtype = dtype_of(proxy->descr);
  if (found.elements.dtype == Dtype::count)
    throw py::type_error(std::string(what) + " has element type " + std::string(py::str(py::handle(proxy->descr))) +
                         ", which no collective takes");
  found.extents.assign(proxy->dimensions, proxy->dimensions + proxy->nd);
  found.strides.assign(proxy->strides, proxy->strides + proxy->nd);
  found.elements.data = proxy->data;
  found.elements.count = checked_count(found.extents, static_cast<int64_t>(size_of(found.elements.dtype)), what);
  return found;
}

void bind_array(py::module_& m) {
  m.def("is_numpy", &is_numpy, py::arg("array"), "Whether the argument is exactly a numpy.ndarray, not of a subclass.");
  m.def(
      "dtype_name",
      [](const py::object& descriptor) -> std::optional<std::string> {
        const Dtype dtype = dtype_of(descriptor);
        if (dtype == Dtype::count) return std::nullopt;
        return name_of(dtype);
      },
      py::arg("dtype"), "The library's name of a numpy.dtype, or None.");
}

}  // namespace pc
