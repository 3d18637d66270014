#include "schedule/schedule.h"

#include "bindings/bindings.h"

namespace pc {

void bind_schedule(py::module_& m) {
  py::class_<Schedule, std::shared_ptr<Schedule>>(m, "Schedule", "One rank's compiled schedule, checked.")
      .def(py::init([](const py::buffer& table) {
             const py::buffer_info info = table.request();
             const bool run = info.ndim == 1 && (info.size < 2 || info.strides[0] == info.itemsize);
             if (!run || !info.item_type_is_equivalent_to<int32_t>())
               throw py::type_error("a schedule table is a contiguous array of int32");
             const auto* words = static_cast<const int32_t*>(info.ptr);
             return std::make_shared<Schedule>(std::vector<int32_t>(words, words + info.size));
           }),
           py::arg("table"))
      .def_property_readonly("size", [](const Schedule& s) { return s.view().size(); })
      .def_property_readonly("rank", [](const Schedule& s) { return s.view().rank(); })
      .def_property_readonly("steps", [](const Schedule& s) { return s.view().steps(); })
      .def_property_readonly("cells", [](const Schedule& s) { return s.view().cells(); })
      .def_property_readonly("chunks", [](const Schedule& s) { return s.view().chunks(); });

  py::class_<Layout>(m, "Layout", "The position of each chunk, in elements.")
      .def_static("split", &Layout::split, py::arg("count"), py::arg("chunks"), py::arg("align"))
      .def_static("blocks", &Layout::blocks, py::arg("counts"), py::arg("packed_input"), py::arg("packed_output"))
      .def_static("matrix", &Layout::matrix, py::arg("counts"), py::arg("size"))
      .def_readonly("length", &Layout::length)
      .def_readonly("input_offset", &Layout::input_offset)
      .def_readonly("output_offset", &Layout::output_offset);
}

}  // namespace pc
