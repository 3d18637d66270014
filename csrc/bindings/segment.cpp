#include "window/segment.h"

#include "bindings/bindings.h"

namespace pc {

void bind_segment(py::module_& m) {
  py::class_<Segment, std::shared_ptr<Segment>>(m, "Segment", py::buffer_protocol(),
                                                "Shared memory that all ranks of a communicator have mapped.")
      .def_static("create", &create_segment, py::arg("kind"), py::arg("bytes"))
      .def_static("attach", &attach_segment, py::arg("token"))
      .def("token", &Segment::token)
      .def("seal", &Segment::seal)
      .def("reserve", &Segment::reserve, py::arg("offset"), py::arg("bytes"))
      .def_property_readonly("bytes", &Segment::bytes)
      .def_buffer([](Segment& s) { return py::buffer_info(s.data(), 1, "B", static_cast<py::ssize_t>(s.bytes())); });
}

}  // namespace pc
