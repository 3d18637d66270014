// Arrays in device memory: those of other libraries through DLPack, and our own, which support DLPack and the CUDA
// array interface (version 3).
#include <cuda_runtime.h>

#include <memory>
#include <string>
#include <vector>

#include "base/checked.h"
#include "base/cuda/device.h"
#include "bindings/arrays/dlpack.h"
#include "bindings/cuda/bindings.h"
#include "dtype/table.h"

namespace pc::cuda {
namespace {

using namespace dlpack;

constexpr int32_t kDeviceCuda = 2, kDeviceCudaManaged = 13;

// Another library's array, held by its capsule.
class View {
 public:
  explicit View(const py::object& capsule) : export_(owned(capsule)) {
    const Tensor& t = *export_.tensor;
    if (t.device.type != kDeviceCuda && t.device.type != kDeviceCudaManaged)
      throw py::type_error("the array is not in the memory of a CUDA device (DLPack device type " +
                           std::to_string(t.device.type) + ")");
    const Dtype type = element_type(t.dtype);
    if (type == Dtype::count) throw py::type_error(dlpack::refusal(t.dtype));
    dtype = name_of(type);
    device = t.device.id;
    dlpack::count_of(t, size_of(type));
    shape.assign(t.shape, t.shape + t.ndim);
    contiguous = dlpack::contiguous(t);
    address = reinterpret_cast<uintptr_t>(t.data) + t.byte_offset;
    read_only = export_.read_only;
  }

  uintptr_t address = 0;
  std::vector<int64_t> shape;
  std::string dtype;
  int device = 0;
  bool contiguous = true;
  bool read_only = false;

 private:
  const Export export_;
};

// Our own array: C-contiguous, in memory owned by `owner`.
class DeviceArray {
 public:
  DeviceArray(py::object owner_, uintptr_t address_, std::vector<int64_t> shape_, const std::string& dtype_,
              int device_)
      : owner(std::move(owner_)),
        address(address_),
        shape(std::move(shape_)),
        dtype(dtype_named(dtype_)),
        count(checked_count(shape, static_cast<int64_t>(size_of(dtype)), "shape")),
        device(device_) {}
  py::object owner;
  uintptr_t address;
  std::vector<int64_t> shape;
  Dtype dtype;
  int64_t count;
  int device;

  size_t bytes() const { return static_cast<size_t>(count) * size_of(dtype); }
};

// Contents of our DLPack capsules: the array, and the integers that the structure points to.
template <class M>
struct Exported {
  M managed{};
  py::object array;
  std::vector<int64_t> shape, strides;
};

template <class M>
void release(M* managed) {
  const py::gil_scoped_acquire gil;
  delete static_cast<Exported<M>*>(managed->context);
}

template <class M>
py::capsule export_array(const py::object& self, const char* name) {
  const auto& array = self.cast<const DeviceArray&>();
  auto* made = new Exported<M>{{}, self, array.shape, std::vector<int64_t>(array.shape.size(), 1)};
  for (size_t d = array.shape.size(); d-- > 1;) made->strides[d - 1] = made->strides[d] * array.shape[d];
  Tensor& t = made->managed.tensor;
  t.data = reinterpret_cast<void*>(array.address);
  t.device = {kDeviceCuda, array.device};
  t.ndim = static_cast<int32_t>(array.shape.size());
  for (const TypeRow& row : kTypes)
    if (row.dtype == array.dtype) t.dtype = {row.code, row.bits, 1};
  t.shape = made->shape.data();
  t.strides = made->strides.data();
  made->managed.context = made;
  made->managed.deleter = release<M>;
  if constexpr (std::is_same_v<M, ManagedVersioned>) made->managed.major = 1;
  return py::capsule(&made->managed, name, [](PyObject* capsule) {
    const char* now = PyCapsule_GetName(capsule);
    if (now == nullptr || std::string(now).rfind("used_", 0) == 0) return;  // its consumer releases it
    auto* managed = static_cast<M*>(PyCapsule_GetPointer(capsule, now));
    managed->deleter(managed);
  });
}

py::capsule to_dlpack(const py::object& self, const py::object&, const py::object& max_version, const py::object&,
                      const py::object& copy) {
  if (!copy.is_none() && copy.cast<bool>()) throw py::buffer_error("a DeviceArray is not copied by __dlpack__");
  const bool versioned = !max_version.is_none() && max_version.cast<py::tuple>()[0].cast<int>() >= 1;
  return versioned ? export_array<ManagedVersioned>(self, "dltensor_versioned")
                   : export_array<Managed>(self, "dltensor");
}

py::dict array_interface(const DeviceArray& a) {
  constexpr const char* kinds[] = {
#define PC_TYPESTR(name, bytes, code, typestr) typestr,
      PC_EXCHANGED_TYPES(PC_TYPESTR)
#undef PC_TYPESTR
  };
  const char* kind = kinds[static_cast<size_t>(a.dtype)];
  if (*kind == '\0')
    throw py::attribute_error(std::string("the CUDA array interface has no type for ") + name_of(a.dtype) +
                              "; use DLPack");
  py::dict made;
  made["shape"] = py::tuple(py::cast(a.shape));
  made["typestr"] = kind;
  made["data"] = py::make_tuple(a.address, false);
  made["version"] = 3;
  return made;
}

void copy_all(const DeviceArray& a, py::buffer host, bool to_host, uintptr_t stream) {
  const py::buffer_info info = host.request(to_host);
  if (static_cast<size_t>(info.size * info.itemsize) != a.bytes()) throw py::value_error("sizes differ");
  if (!PyBuffer_IsContiguous(info.view(), 'C')) throw py::value_error("the host array is not C-contiguous");
  const py::gil_scoped_release release;
  const OnDevice on(a.device);
  auto* at = reinterpret_cast<void*>(a.address);
  const auto queue = reinterpret_cast<cudaStream_t>(stream);
  if (to_host) check(cudaMemcpyAsync(info.ptr, at, a.bytes(), cudaMemcpyDeviceToHost, queue), "cudaMemcpyAsync");
  else check(cudaMemcpyAsync(at, info.ptr, a.bytes(), cudaMemcpyHostToDevice, queue), "cudaMemcpyAsync");
  check(cudaStreamSynchronize(queue), "cudaStreamSynchronize");
}

}  // namespace

void bind_cuda_array(py::module_& m) {
  py::class_<View>(m, "DlpackView", py::module_local(),
                   "Another library's CUDA array, from its DLPack capsule; not copied.")
      .def(py::init<const py::object&>(), py::arg("capsule"))
      .def_readonly("address", &View::address)
      .def_property_readonly("shape", [](const View& v) { return py::tuple(py::cast(v.shape)); })
      .def_readonly("dtype", &View::dtype)
      .def_readonly("device", &View::device)
      .def_readonly("contiguous", &View::contiguous)
      .def_readonly("read_only", &View::read_only);

  py::class_<DeviceArray>(m, "DeviceArray", py::module_local(),
                          "A C-contiguous array in device memory. torch.from_dlpack and cupy.from_dlpack accept it "
                          "without a copy.")
      .def(py::init<py::object, uintptr_t, std::vector<int64_t>, const std::string&, int>(), py::arg("owner"),
           py::arg("address"), py::arg("shape"), py::arg("dtype"), py::arg("device"))
      .def_readonly("address", &DeviceArray::address)
      .def_property_readonly("shape", [](const DeviceArray& a) { return py::tuple(py::cast(a.shape)); })
      .def_property_readonly("dtype", [](const DeviceArray& a) { return std::string(name_of(a.dtype)); })
      .def_readonly("device", &DeviceArray::device)
      .def_readonly("size", &DeviceArray::count, "Elements.")
      .def_property_readonly("nbytes", &DeviceArray::bytes)
      .def(
          "copy_from_host",
          [](const DeviceArray& a, py::buffer host, uintptr_t stream) { copy_all(a, host, false, stream); },
          py::arg("host"), py::arg("stream") = 0, "Fill from a contiguous host array; blocks until done.")
      .def(
          "copy_to_host",
          [](const DeviceArray& a, py::buffer host, uintptr_t stream) { copy_all(a, host, true, stream); },
          py::arg("host"), py::arg("stream") = 0, "Copy into a contiguous host array; blocks until done.")
      .def("__dlpack__", &to_dlpack, py::kw_only(), py::arg("stream") = py::none(), py::arg("max_version") = py::none(),
           py::arg("dl_device") = py::none(), py::arg("copy") = py::none())
      .def("__dlpack_device__", [](const DeviceArray& a) { return py::make_tuple(kDeviceCuda, a.device); })
      .def_property_readonly("__cuda_array_interface__", &array_interface)
      .def("__repr__", [](const DeviceArray& a) {
        return "<DeviceArray " + std::string(py::str(py::tuple(py::cast(a.shape)))) + " " + name_of(a.dtype) +
               " on device " + std::to_string(a.device) + ">";
      });
}

}  // namespace pc::cuda
