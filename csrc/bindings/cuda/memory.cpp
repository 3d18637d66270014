// Device memory that peers map, and probing a mapping.
#include "bindings/cuda/bindings.h"
#include "executor/cuda/kernels/moves.h"
#include "executor/cuda/kernels/probe.h"
#include "window/cuda_memory.h"

namespace pc::cuda {
namespace {

using MoveRow = std::tuple<uintptr_t, uintptr_t, int64_t>;

void move_rows(int device, const std::vector<MoveRow>& rows, uintptr_t stream) {
  std::vector<Move> moves;
  moves.reserve(rows.size());
  for (const auto& [to, from, bytes] : rows)
    moves.push_back({reinterpret_cast<char*>(to), reinterpret_cast<const char*>(from), bytes});
  move_pieces(device, moves.data(), moves.size(), reinterpret_cast<cudaStream_t>(stream));
}

}  // namespace

void bind_cuda_memory(py::module_& m) {
  // Freeing waits for kernels, and only a Python thread can end those that wait for a lost peer.
  py::class_<DeviceMemory, std::shared_ptr<DeviceMemory>>(m, "DeviceMemory", py::module_local(),
                                                          py::release_gil_before_calling_cpp_dtor(),
                                                          "This process's device memory, or a mapping of a peer's.")
      .def_property_readonly("address", &DeviceMemory::address)
      .def_property_readonly("nbytes", &DeviceMemory::bytes)
      .def_property_readonly("device", &DeviceMemory::device)
      .def(
          "ipc_handle", [](const DeviceMemory& self) { return py::bytes(ipc_handle(self)); },
          "A 64-byte handle with which another process opens it.")
      .def("export_fd", &export_vmm, "A file descriptor with which another process maps it; the caller closes it.");
  const auto free_of_gil = py::call_guard<py::gil_scoped_release>();
  m.def("allocate_plain", &allocate_plain, py::arg("device"), py::arg("nbytes"), free_of_gil,
        "cudaMalloc memory, zeroed.");
  m.def(
      "open_ipc", [](int device, const std::string& handle, size_t bytes) { return open_ipc(device, handle, bytes); },
      py::arg("device"), py::arg("handle"), py::arg("nbytes"), free_of_gil, "Another process's cudaMalloc memory.");
  m.def("allocate_vmm", &allocate_vmm, py::arg("device"), py::arg("nbytes"), free_of_gil,
        "Memory from the driver's virtual memory management, zeroed.");
  m.def("import_vmm", &import_vmm, py::arg("device"), py::arg("descriptor"), py::arg("nbytes"), free_of_gil,
        "Memory that another process has exported as a file descriptor.");
  m.def("move", &move_rows, py::arg("device"), py::arg("rows"), py::arg("stream"), free_of_gil,
        "Copy within device memory, in few launches: rows of (to, from, bytes); a `from` of 0 writes zeros.");
  m.def("probe_write", &probe_write, py::arg("device"), py::arg("address"), py::arg("words"), py::arg("seed"),
        free_of_gil, "Write a pattern of 8-byte words with a kernel.");
  m.def("probe_read", &probe_read, py::arg("device"), py::arg("address"), py::arg("words"), py::arg("seed"),
        free_of_gil, "Number of words that differ from what probe_write writes.");
}

}  // namespace pc::cuda
