// Device memory that peers map, and the probe of a mapping.
#include "bindings/cuda/bindings.h"
#include "executor/cuda/moves.h"
#include "executor/cuda/probe.h"
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
  // Freeing waits for kernels, and only a Python thread ends those that wait for a lost peer.
  py::class_<DeviceMemory, std::shared_ptr<DeviceMemory>>(m, "DeviceMemory", py::module_local(),
                                                          py::release_gil_before_calling_cpp_dtor(),
                                                          "Device memory of ours, or a peer's as it is mapped here.")
      .def_property_readonly("address", &DeviceMemory::address)
      .def_property_readonly("nbytes", &DeviceMemory::bytes)
      .def_property_readonly("device", &DeviceMemory::device)
      .def(
          "ipc_handle", [](const DeviceMemory& self) { return py::bytes(ipc_handle(self)); },
          "64 bytes by which another process opens it.")
      .def("export_fd", &export_vmm, "A file descriptor by which another process maps it; the caller closes it.");
  const auto free_of_gil = py::call_guard<py::gil_scoped_release>();
  m.def("allocate_plain", &allocate_plain, py::arg("device"), py::arg("nbytes"), free_of_gil,
        "cudaMalloc memory, zeroed.");
  m.def(
      "open_ipc", [](int device, const std::string& handle, size_t bytes) { return open_ipc(device, handle, bytes); },
      py::arg("device"), py::arg("handle"), py::arg("nbytes"), free_of_gil, "Another process's cudaMalloc memory.");
  m.def("allocate_vmm", &allocate_vmm, py::arg("device"), py::arg("nbytes"), free_of_gil,
        "Memory of the driver's virtual memory management, zeroed.");
  m.def("import_vmm", &import_vmm, py::arg("device"), py::arg("descriptor"), py::arg("nbytes"), free_of_gil,
        "Memory that another process has exported as a file descriptor.");
  m.def("move", &move_rows, py::arg("device"), py::arg("rows"), py::arg("stream"), free_of_gil,
        "Copies within device memory, few launches for all of them: rows of (to, from, bytes); from 0: zeros.");
  m.def("probe_write", &probe_write, py::arg("device"), py::arg("address"), py::arg("words"), py::arg("seed"),
        free_of_gil, "Write a pattern of 8-byte words with a kernel.");
  m.def("probe_read", &probe_read, py::arg("device"), py::arg("address"), py::arg("words"), py::arg("seed"),
        free_of_gil, "How many words are not as probe_write leaves them.");
}

}  // namespace pc::cuda
