#include "window/segment.h"

#include <string>

#include "base/status.h"
#include "bindings/bindings.h"

namespace pc {

void bind_segment(py::module_& m) {
  py::class_<Segment, std::shared_ptr<Segment>>(m, "Segment", py::buffer_protocol(),
                                                "Shared memory that all ranks of a communicator have mapped.")
      .def_static(
          "create",
          [](const std::string& kind, size_t bytes) {
            if (bytes > static_cast<size_t>(PY_SSIZE_T_MAX)) throw InvalidArgument("the segment is too large");
            return create_segment(kind, bytes);
          },
          py::arg("kind"), py::arg("bytes"))
      .def_static("attach", &attach_segment, py::arg("token"), py::arg("bytes"))
      .def("token", &Segment::token)
      .def("seal", &Segment::seal)
      .def(
          "reserve",
          [](Segment& s, size_t offset, size_t bytes) {
            if (offset > s.bytes() || bytes > s.bytes() - offset)
              throw InvalidArgument(std::to_string(bytes) + " bytes from " + std::to_string(offset) +
                                    " on are not in a segment of " + std::to_string(s.bytes()));
            s.reserve(offset, bytes);
          },
          py::arg("offset"), py::arg("bytes"))
      .def_property_readonly("bytes", &Segment::bytes)
      .def_buffer([](Segment& s) { return py::buffer_info(s.data(), 1, "B", static_cast<py::ssize_t>(s.bytes())); });
}

}  // namespace pc
