// Reading NumPy arrays without NumPy's C API headers.
#include <pybind11/numpy.h>

#include <string>
#include <type_traits>
#include <unordered_map>

#include "base/checked.h"
#include "bindings/bindings.h"

namespace pc {

Dtype dtype_of(py::handle descriptor) {
  static std::pair<PyObject*, Dtype> last{};  // a call's arrays have one; under the GIL
  if (descriptor.ptr() == last.first) return last.second;
  // numpy.dtype objects seen so far; each is kept alive, so that its address is not reused.
  static auto& known = *new std::unordered_map<PyObject*, Dtype>;
  const auto found = known.find(descriptor.ptr());
  if (found != known.end()) return (last = *found).second;
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

static_assert(std::is_same_v<py::ssize_t, int64_t>);  // NumPy's extents are read where they are

bool read_plain(py::handle array, bool writes, PlainArray& plain) {
  if (!is_numpy(array)) {
    if (read_plain_tensor(array, writes, plain)) return true;
    if (!writes || !py::isinstance<Buffer>(array)) return false;
    const Buffer& buffer = array.cast<const Buffer&>();
    plain.view = buffer.view;
    return buffer.extents.empty();
  }
  const auto* proxy = py::detail::array_proxy(array.ptr());
  plain.view.dtype = dtype_of(proxy->descr);
  if (plain.view.dtype == Dtype::count || (proxy->flags & py::detail::npy_api::NPY_ARRAY_C_CONTIGUOUS_) == 0)
    return false;
  plain.view.data = proxy->data;
  plain.view.writable = (proxy->flags & py::detail::npy_api::NPY_ARRAY_WRITEABLE_) != 0;
  plain.shape = {proxy->dimensions, static_cast<size_t>(proxy->nd)};
  plain.view.count = 1;
  for (const int64_t extent : plain.shape) plain.view.count *= extent;  // NumPy has checked that the bytes fit
  return true;
}

py::object new_like(py::handle x, std::span<const int64_t> shape, PlainArray& made) {
  if (!is_numpy(x)) return new_tensor_like(x, shape, made);
  const auto* proxy = py::detail::array_proxy(x.ptr());
  auto& api = py::detail::npy_api::get();
  Py_INCREF(proxy->descr);  // the call below takes a reference
  const auto array = py::reinterpret_steal<py::object>(
      api.PyArray_NewFromDescr_(api.PyArray_Type_, proxy->descr, static_cast<int>(shape.size()),
                                const_cast<int64_t*>(shape.data()), nullptr, nullptr, 0, nullptr));
  if (!array) throw py::error_already_set();
  return read_plain(array, true, made) ? array : py::object();
}

bool makes_plain(py::handle x) { return is_numpy(x) || is_plain_tensor(x); }

py::object pinned(py::handle array) {
  if (!is_numpy(array) && is_plain_tensor(array)) return storage_of(array);
  return py::reinterpret_borrow<py::object>(array);
}

void bind_array(py::module_& m) {
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
