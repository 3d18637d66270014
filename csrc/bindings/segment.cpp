#include "window/segment.h"

#include <sched.h>

#include <atomic>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "base/pause.h"
#include "base/status.h"
#include "bindings/bindings.h"
#include "bindings/interpreter.h"

namespace pc {
namespace {

using Clock = std::chrono::steady_clock;
using Words = std::vector<std::pair<size_t, uint64_t>>;  // their numbers and what they were

constexpr int kSpins = 256;  // about as long as a peer that is writing the word takes

// Yields between looks: the peer may need this core.
bool await_change(Segment& segment, const Words& seen, double seconds) {
  auto* const words = reinterpret_cast<uint64_t*>(segment.data());
  for (const auto& [number, value] : seen)
    if (number >= segment.bytes() / sizeof(uint64_t))
      throw InvalidArgument("word " + std::to_string(number) + " of a segment of " + std::to_string(segment.bytes()) +
                            " bytes");
  const auto changed = [&] {
    for (const auto& [number, value] : seen)
      if (std::atomic_ref(words[number]).load(std::memory_order_acquire) != value) return true;
    return false;
  };
  const Released released;
  for (int i = 0; i < kSpins; ++i) {
    if (changed()) return true;
    pause();
  }
  const auto limit = Clock::now() + std::chrono::duration<double>(seconds);
  do {
    sched_yield();
    if (changed()) return true;
  } while (Clock::now() < limit);
  return false;
}

}  // namespace

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
      .def("await_change", &await_change, py::arg("seen"), py::arg("seconds"),
           "Wait until one of some 64-bit words, given as (number, value), has another value; False: not within this "
           "time. Does not handle signals.")
      .def_property_readonly("bytes", &Segment::bytes)
      .def_buffer([](Segment& s) { return py::buffer_info(s.data(), 1, "B", static_cast<py::ssize_t>(s.bytes())); });
}

}  // namespace pc
