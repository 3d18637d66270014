#include "executor/ledger.h"

#include "bindings/bindings.h"

namespace pc {

template <> inline constexpr bool is_bound<Ledger> = true;

void bind_ledger(py::module_& m) {
  py::class_<Ledger>(m, "Ledger", "Each rank's record of its asynchronous calls, in shared memory.")
      .def(py::init([](std::shared_ptr<Segment> segment, int32_t rank, int32_t size) {
             return std::make_unique<Ledger>(required(std::move(segment)), rank, size);
           }),
           py::arg("segment"), py::arg("rank"), py::arg("size"))
      .def_static("segment_bytes", &Ledger::segment_bytes, py::arg("size"))
      .def("note", &Ledger::note, py::arg("digest"), py::arg("text"),
           "Record the next call; returns a rank whose call of the same number differs, or -1.")
      .def("calls", &Ledger::calls, py::arg("rank"), "How many calls a rank has made.")
      .def("counterpart", &Ledger::counterpart, py::arg("rank"),
           "A rank's record of the call with the same number as this rank's latest.")
      .def("text", &Ledger::text, py::arg("rank"), py::arg("digest"),
           "A rank's record of its latest call with that digest, or nothing.");
}

}  // namespace pc
