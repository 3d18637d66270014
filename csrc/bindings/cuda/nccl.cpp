// A loaded NCCL library and its communicators, as used by pycollective/comm/cuda/nccl/library.py.
#include "rail/nccl.h"

#include "bindings/cuda/bindings.h"

namespace pc::cuda {
namespace {

// The collectives that NCCL has: all that move data, and reductions of all ranks' contributions.
Collective kind_of(const std::string& name) {
  for (size_t i = 0; i < kCollectives.size(); ++i) {
    const auto kind = static_cast<Collective>(i);
    const Traits& t = traits(kind);
    if (name == t.name && t.program == kind && t.prefix == Prefix::none) return kind;
  }
  throw InvalidArgument("NCCL has no " + name);
}

bool run(NcclComm& comm, const std::string& collective, uintptr_t x, uintptr_t out, int64_t count,
         std::vector<int64_t> counts, int type, int64_t itemsize, int op, const py::bytes& scalar, int root,
         uintptr_t stream, double timeout) {
  const NcclCall call{kind_of(collective),
                      reinterpret_cast<const char*>(x),
                      reinterpret_cast<char*>(out),
                      count,
                      std::move(counts),
                      type,
                      itemsize,
                      op,
                      std::string(scalar),
                      root,
                      reinterpret_cast<cudaStream_t>(stream)};
  const py::gil_scoped_release release;
  return comm.run(call, timeout);
}

}  // namespace

void bind_cuda_nccl(py::module_& m) {
  const auto free_of_gil = py::call_guard<py::gil_scoped_release>();
  py::class_<NcclLibrary, std::shared_ptr<NcclLibrary>>(m, "NcclLibrary", py::module_local(), "A loaded copy of NCCL.")
      .def(py::init<const std::string&>(), py::arg("file"))
      .def_readonly_static("OLDEST", &NcclLibrary::kOldest, "The code of the oldest supported version.")
      .def_property_readonly("version", &NcclLibrary::version, "NCCL's version code, 22304 for 2.23.4.")
      .def_property_readonly("version_text", [](const NcclLibrary& l) { return nccl_version_text(l.version()); })
      .def_property_readonly("path", &NcclLibrary::path, "The file that was loaded.")
      .def("unique_id", [](const NcclLibrary& l) { return py::bytes(l.unique_id()); });
  py::class_<NcclComm>(m, "NcclComm", py::module_local(), "One rank's part of an NCCL communicator.")
      .def(py::init([](std::shared_ptr<NcclLibrary> library, const py::bytes& id, int size, int rank, int device,
                       int most_blocks) {
             const std::string bytes(id);
             const py::gil_scoped_release release;
             return std::make_unique<NcclComm>(std::move(library), bytes, size, rank, device, most_blocks);
           }),
           py::arg("library"), py::arg("unique_id"), py::arg("size"), py::arg("rank"), py::arg("device"),
           py::arg("most_blocks"), "Start connecting to the other ranks; `settle` waits for them.")
      .def("settle", &NcclComm::settle, py::arg("timeout"), free_of_gil, "False when the time has expired.")
      .def("run", &run, py::arg("collective"), py::arg("x"), py::arg("out"), py::arg("count"), py::arg("counts"),
           py::arg("type"), py::arg("itemsize"), py::arg("op"), py::arg("scalar"), py::arg("root"), py::arg("stream"),
           py::arg("timeout"), "Enqueue a call on its stream; False if a peer did not arrive within the time.")
      .def("failure", &NcclComm::failure, free_of_gil, "The asynchronous error so far, or None.")
      .def("abort", &NcclComm::abort, free_of_gil)
      .def("close", &NcclComm::close, py::arg("timeout"), free_of_gil, "False if it had to be aborted.");
}

}  // namespace pc::cuda
