// Checks of a call's arguments, for the backends that are written in Python.
#include "schedule/call_arrays.h"

#include <pybind11/stl.h>

#include <map>

#include "base/environment.h"
#include "bindings/bindings.h"

namespace pc {

Collective collective_named(const std::string& name) {
  static const std::map<std::string, Collective> known = [] {
    std::map<std::string, Collective> names;
    for (size_t i = 0; i < static_cast<size_t>(Collective::count); ++i)
      names.emplace(name_of(static_cast<Collective>(i)), static_cast<Collective>(i));
    return names;
  }();
  const auto found = known.find(name);
  if (found == known.end()) throw InvalidArgument("there is no collective named " + name);
  return found->second;
}

namespace {

// From (address, elements, dtype, writable), a NumPy array or a Buffer.
ArrayView read_view(const py::object& array, const char* what) {
  if (!py::isinstance<py::tuple>(array)) {
    const std::optional<StridedView> strided = strided_view_of(array, what);
    return strided ? strided->elements : view_of(array, what);
  }
  const auto [address, count, dtype, writable] = array.cast<std::tuple<uintptr_t, int64_t, std::string, bool>>();
  if (count < 0) throw InvalidArgument(std::string(what) + ": a negative number of elements");
  return {reinterpret_cast<char*>(address), count, dtype_named(dtype), writable};
}

CallArrays read(const py::object& x, const py::object& out) {
  CallArrays a;
  a.has_input = !x.is_none();
  a.has_output = !out.is_none();
  if (!a.has_input && !a.has_output) throw WrongType("neither x nor out is given");
  if (a.has_input) a.input = read_view(x, "x");
  if (a.has_output) a.output = read_view(out, "out");
  a.count = a.has_input ? a.input.count : a.output.count;
  return a;
}

void check(const std::string& collective, int32_t rank, int32_t size, int32_t root,
           const std::optional<std::vector<int64_t>>& counts, const py::object& x, const py::object& out) {
  const std::vector<int64_t> blocks = counts.value_or(std::vector<int64_t>{});
  if (rank < 0 || rank >= size)
    throw InvalidArgument("rank " + std::to_string(rank) + " is not one of " + std::to_string(size) + " ranks");
  const CallShape call{collective_named(collective), rank, size, root, blocks};
  check_counts(call);
  CallArrays a = read(x, out);
  if (traits(call.collective).in_blocks()) a.count = sum_of(blocks);
  check_arrays(call, a);
}

int placement(const std::string& collective, const py::object& x, const py::object& out, bool x_shared,
              bool out_shared) {
  return placement_of(
      traits(collective_named(collective)), read(x, out), [&] { return x_shared; }, [&] { return out_shared; });
}

}  // namespace

double read_seconds(py::handle timeout) {
  const double seconds = PyFloat_AsDouble(timeout.ptr());
  if (seconds != -1.0 || PyErr_Occurred() == nullptr) return seconds;
  if (PyErr_ExceptionMatches(PyExc_TypeError) == 0) throw py::error_already_set();
  PyErr_Clear();
  throw WrongType(std::string("timeout must be a number of seconds, not of type ") + Py_TYPE(timeout.ptr())->tp_name);
}

double read_timeout(py::handle timeout) {
  if (timeout.is_none()) return environment().timeout;
  const double seconds = read_seconds(timeout);
  if (!(seconds >= 0.0)) {
    const std::string given = py::repr(timeout);
    throw InvalidArgument("timeout must be a number of seconds, 0 or more, not " + given);
  }
  return std::min(seconds, kLongestTimeout);
}

void bind_call_arrays(py::module_& m) {
  m.def("check_call", &check, py::arg("collective"), py::arg("rank"), py::arg("size"), py::arg("root"),
        py::arg("counts"), py::arg("x"), py::arg("out"),
        "Raise ValueError or TypeError for arrays that this rank's call cannot use: lengths, types, overlap. An "
        "array is a NumPy array, a HostBuffer, or (address, elements, dtype, writable); None: not given.");
  m.def("placement", &placement, py::arg("collective"), py::arg("x"), py::arg("out"), py::arg("x_shared"),
        py::arg("out_shared"),
        "Which arrays of a call peers may access directly: 1 the input, 2 the output, 4 in place. `x_shared`, "
        "`out_shared`: whether peers have mapped their memory.");
  m.def("timeout_of", &read_timeout, py::arg("timeout"),
        "A call's timeout in seconds; None: PYCOLLECTIVE_TIMEOUT. Raises ValueError or TypeError.");
}

}  // namespace pc
