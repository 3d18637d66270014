#include "bindings/arrays/dlpack.h"

#include <pybind11/numpy.h>
#include <pybind11/typing.h>

#include <unordered_map>

#include "bindings/bindings.h"

namespace pc {
namespace {

using namespace dlpack;

bool in_host_memory(const Tensor& t) { return t.device.type == device_cpu || t.device.type == device_cuda_host; }

ArrayView read(const Tensor& t, bool read_only, bool strided = false) {
  if (!in_host_memory(t))
    throw py::type_error("the array is not in CPU memory (DLPack device type " + std::to_string(t.device.type) + ")");
  ArrayView view;
  view.dtype = element_type(t.dtype);
  if (view.dtype == Dtype::count) throw py::type_error(refusal(t.dtype));
  view.count = count_of(t, size_of(view.dtype));
  if (!strided && !contiguous(t)) throw py::value_error("the array is not C-contiguous");
  if (t.byte_offset > PTRDIFF_MAX) throw py::value_error("the array's byte_offset exceeds the address space");
  view.data = static_cast<char*>(t.data) + t.byte_offset;
  view.writable = !read_only;
  if (t.data == nullptr && view.count > 0) throw py::type_error("the array has no memory: a fake tensor of torch?");
  return view;
}

// Asks for the versioned protocol, the only one that reports whether an array is read-only.
py::object call_dlpack(const py::object& array) {
  try {
    return array.attr("__dlpack__")(py::arg("max_version") = py::make_tuple(1, 0));
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_TypeError)) throw;  // an older producer without the keyword
  }
  return array.attr("__dlpack__")();
}

Export export_by_capsule(const py::object& array) {
  const py::object capsule = call_dlpack(array);
  if (PyCapsule_CheckExact(capsule.ptr()) == 0)
    throw py::type_error("__dlpack__ did not return a capsule but a " + std::string(py::str(py::type::of(capsule))));
  return owned(capsule);
}

using DlpackLayout = py::typing::Tuple<py::int_, py::typing::Tuple<py::int_, py::ellipsis>>;

// The device type and shape of arrays that do not provide them themselves.
DlpackLayout describe(const py::object& array) {
  const Export made = export_by_capsule(array);
  const Tensor& tensor = *made.tensor;
  count_of(tensor, 1);  // refuses invalid extents
  py::tuple shape(tensor.ndim);
  for (int32_t d = 0; d < tensor.ndim; ++d) shape[static_cast<size_t>(d)] = tensor.shape[d];
  return py::make_tuple(static_cast<int32_t>(tensor.device.type), shape);
}

// How C code reads the arrays of a type.
struct Producer {
  const ExchangeApi* api = nullptr;  // null: only __dlpack__ reads them
  bool torch = false;  // never read-only (this interface would not report it), but may require grad or be negated
  bool exact = false;  // not a subclass, which may give its elements another meaning
};

py::object of_torch(const char* module, const char* name) {
  const auto found = py::reinterpret_steal<py::object>(PyImport_GetModule(py::str(module).ptr()));
  return found ? py::getattr(found, name, py::none()) : py::none();
}

Producer inspect(PyTypeObject* type) {
  Producer producer;
  const py::handle handle(reinterpret_cast<PyObject*>(type));
  producer.torch = py::str(py::getattr(handle, "__module__", py::str(""))).cast<std::string>().starts_with("torch");
  producer.exact = handle.is(of_torch("torch", "Tensor")) || handle.is(of_torch("torch.nn", "Parameter"));
  // Another library's subclass may override __dlpack__.
  const bool own = handle.attr("__dict__").contains("__dlpack_c_exchange_api__");
  const py::object capsule = py::getattr(handle, "__dlpack_c_exchange_api__", py::none());
  if ((producer.torch || own) && PyCapsule_CheckExact(capsule.ptr()) != 0)
    producer.api = static_cast<const ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  if (producer.api != nullptr && producer.api->major != 1) producer.api = nullptr;
  return producer;
}

// What `inspect` finds, or nothing if the type's attributes raise errors.
Producer producer_of(PyTypeObject* type) {
  static auto* known = new std::unordered_map<PyTypeObject*, Producer>;
  if (const auto found = known->find(type); found != known->end()) return found->second;
  Producer producer;
  try {
    producer = inspect(type);
  } catch (py::error_already_set&) {
    producer = {};
  }
  if (PyErr_Occurred() != nullptr) PyErr_Clear();
  Py_INCREF(type);
  if (known->size() >= 64 || !known->emplace(type, producer).second) Py_DECREF(type);
  return producer;
}

PyObject* interned(const char* name) { return PyUnicode_InternFromString(name); }

// __dlpack__ refuses a tensor that requires grad; the exchange API does not check.
bool requires_grad(py::handle tensor) {
  static PyObject* const name = interned("requires_grad");
  const auto found = py::reinterpret_steal<py::object>(PyObject_GetAttr(tensor.ptr(), name));
  if (!found) PyErr_Clear();
  return found.ptr() != Py_False;
}

// torch may negate or conjugate a tensor by a bit of it, not in memory; DLPack exports neither bit, and __dlpack__ refuses
// the second.
bool has_bit(py::handle tensor, PyObject* name) {
  const auto found = py::reinterpret_steal<py::object>(PyObject_CallMethodNoArgs(tensor.ptr(), name));
  if (!found) PyErr_Clear();
  return found.ptr() != Py_False;
}

bool negated(py::handle tensor) {
  static PyObject* const name = interned("is_neg");
  return has_bit(tensor, name);
}

bool conjugated(py::handle tensor) {
  static PyObject* const name = interned("is_conj");
  return has_bit(tensor, name);
}

// What __dlpack__ would return, without Python; null if __dlpack__ must be called, or to let it report its refusal.
ManagedVersioned* export_owned(py::handle array) {
  const Producer producer = producer_of(Py_TYPE(array.ptr()));
  if (producer.api == nullptr || producer.api->export_owned == nullptr) return nullptr;
  if (producer.torch && (requires_grad(array) || conjugated(array))) return nullptr;
  ManagedVersioned* owned = nullptr;
  if (producer.api->export_owned(array.ptr(), &owned) != 0) owned = nullptr;
  if (PyErr_Occurred() != nullptr) PyErr_Clear();
  if (owned == nullptr || owned->major == 1) return owned;
  free_export<ManagedVersioned>(owned);
  return nullptr;
}

// The array as the exchange API describes it, without a reference to it.
bool borrow_tensor(const Producer& producer, py::handle array, Tensor& tensor) {
  if (producer.api == nullptr || producer.api->describe == nullptr) return false;
  if (producer.api->describe(array.ptr(), &tensor) == 0) return true;
  PyErr_Clear();  // __dlpack__ gives the reason
  return false;
}

}  // namespace

bool glance(py::handle array, ArrayView& view) {
  const Producer producer = producer_of(Py_TYPE(array.ptr()));
  Tensor tensor{};
  if (!producer.torch || !borrow_tensor(producer, array, tensor)) return false;
  view = read(tensor, false);
  return true;
}

namespace {

bool read_plain(const Producer& producer, py::handle array, PlainArray& plain) {
  Tensor tensor{};
  if (!borrow_tensor(producer, array, tensor) || !in_host_memory(tensor)) return false;
  try {
    if (!contiguous(tensor)) return false;
    plain.view = read(tensor, !producer.torch);
  } catch (const std::exception&) {
    return false;  // arrays.adapted reports it
  }
  plain.shape = {tensor.shape, static_cast<size_t>(tensor.ndim)};
  return true;
}

}  // namespace

bool read_plain_tensor(py::handle array, bool writes, PlainArray& plain) {
  const Producer producer = producer_of(Py_TYPE(array.ptr()));
  if (producer.torch ? !producer.exact : writes) return false;
  if (!read_plain(producer, array, plain)) return false;
  if (!producer.torch) return true;
  const bool complex = kind_of(plain.view.dtype) == Kind::complex;
  return !requires_grad(array) && !negated(array) && !(complex && conjugated(array));
}

bool is_plain_tensor(py::handle array) { return producer_of(Py_TYPE(array.ptr())).exact; }

py::object new_tensor_like(py::handle x, std::span<const int64_t> shape, PlainArray& made) {
  if (!is_plain_tensor(x)) return {};
  static PyObject* const name = interned("new_empty");
  std::vector<PyObject*> arguments{x.inc_ref().ptr()};
  for (const int64_t extent : shape) arguments.push_back(PyLong_FromLongLong(extent));  // cheaper than one tuple
  if (shape.empty()) arguments.push_back(PyTuple_New(0));
  const auto tensor =
      py::reinterpret_steal<py::object>(PyObject_VectorcallMethod(name, arguments.data(), arguments.size(), nullptr));
  for (PyObject* argument : arguments) Py_DECREF(argument);
  if (!tensor) PyErr_Clear();  // arrays.adapted reports it
  if (!tensor || !is_plain_tensor(tensor)) return {};
  return read_plain(producer_of(Py_TYPE(tensor.ptr())), tensor, made) ? tensor : py::object();
}

py::object storage_of(py::handle tensor) {
  static PyObject* const name = interned("untyped_storage");
  auto storage = py::reinterpret_steal<py::object>(PyObject_CallMethodNoArgs(tensor.ptr(), name));
  if (!storage) PyErr_Clear();
  return storage ? storage : py::reinterpret_borrow<py::object>(tensor);
}

Buffer::Buffer(py::object array, bool strided) {
  ManagedVersioned* const managed = export_owned(array);
  Export made = managed != nullptr ? owned(managed) : export_by_capsule(array);
  const Tensor& tensor = *made.tensor;
  view = read(tensor, made.read_only, strided);
  held_ = std::move(made.held);
  if (contiguous(tensor)) return;
  extents.assign(tensor.shape, tensor.shape + tensor.ndim);
  for (int32_t d = 0; d < tensor.ndim; ++d)
    strides.push_back(checked_mul(tensor.strides[d], static_cast<int64_t>(size_of(view.dtype)), "a stride"));
  view.writable = false;
}

Buffer::~Buffer() = default;

namespace {

std::shared_ptr<Buffer> on_device(uintptr_t address, int64_t count, const std::string& dtype, bool writable) {
  if (count < 0) throw InvalidArgument("a negative number of elements");
  return std::make_shared<Buffer>(ArrayView{reinterpret_cast<char*>(address), count, dtype_named(dtype), writable});
}

std::shared_ptr<Buffer> bytes_of(const py::object& tensor) {
  PlainArray plain;
  if (!is_plain_tensor(tensor) || !read_plain_tensor(tensor, true, plain)) return nullptr;
  if (kind_of(plain.view.dtype) == Kind::complex) return nullptr;  // conjugated?
  auto buffer = std::make_shared<Buffer>(tensor);
  buffer->view.count = buffer->view.bytes();
  buffer->view.dtype = Dtype::uint8;
  return buffer;
}

}  // namespace

void bind_dlpack(py::module_& m) {
  py::class_<Buffer, std::shared_ptr<Buffer>>(m, "HostBuffer",
                                              "CPU memory of an array that supports DLPack; not copied.")
      .def(py::init<py::object, bool>(), py::arg("array"), py::arg("strided") = false)
      .def_static("on_device", &on_device, py::arg("address"), py::arg("count"), py::arg("dtype"), py::arg("writable"),
                  "Elements in device memory, for Team.call with `copies` only. The caller keeps the memory.")
      .def_static("bytes_of", &bytes_of, py::arg("tensor"),
                  "The bytes of a torch tensor, as uint8; None unless it is a plain one: contiguous, in CPU memory, "
                  "without gradient, negation or conjugation, and not of a subclass.")
      .def_property_readonly("address", [](const Buffer& b) { return reinterpret_cast<uintptr_t>(b.view.data); })
      .def_property_readonly("count", [](const Buffer& b) { return b.view.count; })
      .def_property_readonly("dtype", [](const Buffer& b) { return name_of(b.view.dtype); })
      .def_property_readonly("contiguous", [](const Buffer& b) { return b.extents.empty(); })
      .def(
          "array",
          [](const py::object& self, const py::dtype& dtype) {
            const Buffer& buffer = self.cast<const Buffer&>();
            const ArrayView& view = buffer.view;
            if (dtype_of(dtype) != view.dtype)
              throw py::type_error("the elements are " + std::string(name_of(view.dtype)) + ", not " +
                                   std::string(py::str(dtype)));
            if (!buffer.extents.empty()) return py::array(dtype, buffer.extents, buffer.strides, view.data, self);
            return py::array(dtype, std::vector<py::ssize_t>{view.count}, view.data, self);
          },
          py::arg("dtype"), "The elements as a NumPy array, not copied; flat if they are contiguous.")
      .def_property_readonly("writable", [](const Buffer& b) { return b.view.writable; });
  m.def("dlpack_layout", &describe, py::arg("array"),
        "An array's DLPack device type and shape, for arrays that have only __dlpack__.");
}

}  // namespace pc
