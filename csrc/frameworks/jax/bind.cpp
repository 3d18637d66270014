// What pycollective/jax uses.
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include "frameworks/jax/collective.h"
#include "frameworks/jax/python_call.h"

namespace pc::jax {
namespace {

int64_t plan(const py::object& team, const std::string& collective, const std::string& dtype, int64_t count,
             const py::object& op, int32_t root, std::vector<int64_t> counts, std::string note,
             const py::object& timeout) {
  if (!py::isinstance<TeamCall>(team)) throw WrongType("team must be a Team");
  const Dtype element = dtype_named(dtype);
  return add({FixedCall(team, collective_named(collective), element, count, root, op, std::move(counts),
                        std::move(note), timeout),
              static_cast<int64_t>(size_of(element))});
}

int64_t plan_both(int64_t send, int64_t receive) {
  const PlannedCollective &sends = collective_of(send), &receives = collective_of(receive);
  return add({sends.call, sends.element, receives.call});
}

using Types = py::typing::Dict<py::int_, py::object>;
using Describe = py::typing::Callable<py::str(py::object)>;
using Handlers = py::typing::Dict<py::str, py::object>;

Handlers handlers(const Types& types, const Describe& describe) {
  if (python == nullptr) python = new Python{py::dict(), types, describe};
  const auto capsule = [](xla::Handler* handler) { return py::capsule(reinterpret_cast<void*>(handler)); };
  Handlers made;
  made["pycollective_collective"] = capsule(run_collective);
  made["pycollective_python"] = capsule(run_python);
  return made;
}

int64_t add_start(const py::object& start) {
  if (python == nullptr) throw InvalidArgument("jax_handlers has not been called");
  const auto number = static_cast<int64_t>(py::len(python->starts));
  python->starts[py::int_(number)] = start;
  return number;
}

}  // namespace
}  // namespace pc::jax

namespace pc {

void bind_jax(py::module_& m) {
  py::class_<jax::GraphCall>(m, "JaxGraphCall", "One execution of a custom call of XLA: a GraphCall.")
      .def_property_readonly("inputs",
                             [](const jax::GraphCall& self) -> py::typing::List<py::object> { return self.inputs(); })
      .def("output", &jax::GraphCall::output, py::arg("index"), py::arg("shape"))
      .def("done", &jax::GraphCall::done, py::arg("error"));
  m.def(
      "jax_handlers", &jax::handlers, py::arg("types"), py::arg("describe"),
      "The handlers, by target name, as capsules for jax.ffi.register_ffi_target. `types`: XLA's number of an element "
      "type -> numpy.dtype; `describe(exception)`: the text of an error.");
  m.def("jax_plan", &jax::plan, py::arg("team"), py::arg("collective"), py::arg("dtype"), py::arg("count"),
        py::arg("op"), py::arg("root"), py::arg("counts"), py::arg("note"), py::arg("timeout"),
        "Plan a call for custom calls to run; returns its number. Arguments as for Team.call; `count`: elements, where "
        "`counts` does not determine them. Keeps the team alive.");
  m.def("jax_plan_both", &jax::plan_both, py::arg("send"), py::arg("receive"),
        "The number of a call that runs two planned messages at the same time.");
  m.def("jax_add_start", &jax::add_start, py::arg("start"), "The number of a Python function for custom calls.");
}

}  // namespace pc
