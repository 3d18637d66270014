// The methods of Communicator that are collectives and messages: Python calls them without a frame.
//
// Python has their signatures and documentation (pycollective/comm/collectives.py), and reports arguments that do not
// fit.  Team.call, which takes a call's terms as they are, has no frame either.
#include <Python.h>
#include <structmember.h>

#include <array>
#include <utility>

#include "bindings/calls/handle.h"
#include "bindings/calls/team_call.h"

namespace pc {
namespace {

// Every call of the core by its number, and those below.
constexpr auto kCalls = static_cast<size_t>(Collective::count);
enum Method : size_t { recv = kCalls, allgatherv, alltoallv, methods };
constexpr auto kSend = static_cast<size_t>(Collective::send), kBarrier = static_cast<size_t>(Collective::barrier);

constexpr const char* name_of_method(size_t method) {
  if (method < kCalls) return traits(static_cast<Collective>(method)).name;
  return method == recv ? "recv" : method == allgatherv ? "allgatherv" : "alltoallv";
}

// A blocking or nonblocking form.
struct Form {
  PyMethodDef definition{};
  PyObject* described = nullptr;  // the method as Python describes it
  std::string name, documentation;
};

std::array<std::array<Form, 2>, methods> forms;  // [method][nonblocking]
Form team_call;
PyTypeObject* team_type = nullptr;
PyTypeObject* handle_type = nullptr;
PyObject *work_name, *value_name, *default_op;

// Attributes of a communicator that are slots: read where they are, without a lookup of their names.
PyTypeObject* communicator_type = nullptr;
Py_ssize_t team_slot, outgoing_slot, incoming_slot;

Py_ssize_t slot_of(const char* name) {
  const py::object member = py::handle(reinterpret_cast<PyObject*>(communicator_type)).attr(name);
  if (Py_TYPE(member.ptr()) != &PyMemberDescr_Type) throw WrongType(std::string(name) + " is not a slot");
  return reinterpret_cast<PyMemberDescrObject*>(member.ptr())->d_member->offset;
}

py::object read_slot(py::handle communicator, Py_ssize_t slot) {
  if (PyObject_TypeCheck(communicator.ptr(), communicator_type) == 0) throw WrongType("a Communicator is needed");
  PyObject* value = *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(communicator.ptr()) + slot);
  if (value == nullptr) throw py::attribute_error("Communicator.__init__() has not been called");
  return py::reinterpret_borrow<py::object>(value);
}

// A parameter's name, interned, and where its argument is kept.
struct Parameter {
  const char* text = nullptr;
  py::handle CallArguments::* field = nullptr;
  PyObject* name = nullptr;
};

// Keyword arguments that methods share, see options.py.  Each method takes the first few of them.
enum Options : size_t { timeout_only = 1, calling = 5, moving = 6, reducing = 9 };
std::array<Parameter, reducing> options{{{"timeout", &CallArguments::timeout},
                                         {"name", &CallArguments::name},
                                         {"stream", &CallArguments::stream},
                                         {"max_channels", &CallArguments::max_channels},
                                         {"match", &CallArguments::match},
                                         {"topology", &CallArguments::topology},
                                         {"op", &CallArguments::op},
                                         {"prescale", &CallArguments::prescale},
                                         {"postscale", &CallArguments::postscale}}};

struct Parameters {
  std::array<Parameter, 5> each;
  size_t count, positional, required;
  Options options;
};

constexpr Parameter kX{"x", &CallArguments::x}, kOut{"out", &CallArguments::out}, kRoot{"root", &CallArguments::root};

constexpr Parameters parameters_of(size_t method) {
  const Parameter counts{"counts", &CallArguments::counts}, graph{"graph", &CallArguments::graph},
      step{"step", &CallArguments::step}, normalised{"normalised", &CallArguments::normalised},
      send_counts{"send_counts", &CallArguments::counts}, recv_counts{"recv_counts", &CallArguments::recv_counts},
      dest{"dest", &CallArguments::root}, source{"source", &CallArguments::root};
  if (method == recv) return {{kOut, source}, 2, 2, 2, timeout_only};
  if (method == allgatherv) return {{kX, counts, kOut}, 3, 3, 1, moving};
  if (method == alltoallv) return {{kX, send_counts, recv_counts, kOut}, 4, 4, 2, moving};
  if (method == kSend) return {{kX, dest}, 2, 2, 2, timeout_only};
  if (method == kBarrier) return {{}, 0, 0, 0, moving};
  const Traits& t = kCollectives[method];
  if (t.weighted) return {{kX, graph, step, kOut, normalised}, 5, 4, 2, calling};
  if (t.rooted) return {{kX, kRoot, kOut}, 3, 3, 1, t.reduces ? reducing : moving};
  return {{kX, kOut}, 2, 2, 1, t.reduces ? reducing : moving};
}

template <size_t method>
constexpr Parameters kParameters = parameters_of(method);
std::array<Parameters, methods> named_parameters;

// Arguments as Python passes them to a function without a frame.
struct Given {
  PyObject* const* values;
  Py_ssize_t count;  // positional ones, which come first
  PyObject* names;   // of the others; may be null

  Py_ssize_t named() const { return names == nullptr ? 0 : PyTuple_GET_SIZE(names); }
  PyObject* name(Py_ssize_t i) const { return PyTuple_GET_ITEM(names, i); }
  PyObject* value(Py_ssize_t i) const { return values[count + i]; }
};

template <size_t method, class Same>
py::handle CallArguments::* find(Same&& same) {
  constexpr const Parameters& s = kParameters<method>;
  for (size_t p = 0; p < s.count; ++p)
    if (same(named_parameters[method].each[p].name)) return s.each[p].field;
  for (size_t p = 0; p < s.options; ++p)
    if (same(options[p].name)) return options[p].field;
  return nullptr;
}

// False: they do not fit the signature.
template <size_t method>
[[gnu::always_inline]] inline bool bind(CallArguments& call, const Given& given) {
  constexpr const Parameters& s = kParameters<method>;
  if (given.count > static_cast<Py_ssize_t>(s.positional)) return false;
  for (Py_ssize_t i = 0; i < given.count; ++i) call.*s.each[static_cast<size_t>(i)].field = given.values[i];
  for (Py_ssize_t i = 0; i < given.named(); ++i) {
    PyObject* const name = given.name(i);
    auto field = find<method>([&](PyObject* known) { return known == name; });
    if (field == nullptr)  // not interned, or unknown
      field = find<method>([&](PyObject* known) { return PyUnicode_Compare(known, name) == 0; });
    if (field == nullptr || call.*field) return false;
    call.*field = given.value(i);
  }
  for (size_t p = 0; p < s.required; ++p)
    if (!(call.*s.each[p].field)) return false;
  return true;
}

bool is_avg(py::handle op) {
  return PyUnicode_Check(op.ptr()) && PyUnicode_CompareWithASCIIString(op.ptr(), "avg") == 0;
}

// A call's name, which only errors show.
void check_name(py::handle name) {
  if (PyUnicode_CheckExact(name.ptr()) && PyUnicode_AsUTF8(name.ptr()) != nullptr) return;
  PyErr_Clear();
  py::module_::import("pycollective.checks").attr("text")(name, "name");
}

void set_defaults(CallArguments& call) {
  if (!call.op) call.op = default_op;
  if (!call.topology) call.topology = Py_None;
  if (!call.timeout) call.timeout = Py_None;
}

// The channel for messages to or from the rank of the call.
py::object channel_of(const CallArguments& call, bool sends) {
  if (PyLong_CheckExact(call.root.ptr())) {
    const py::object channels = read_slot(call.communicator, sends ? outgoing_slot : incoming_slot);
    if (PyObject* found = PyDict_GetItem(channels.ptr(), call.root.ptr()))
      return py::reinterpret_borrow<py::object>(found);
  }
  const py::object backend = call.communicator.attr("backend");
  const py::object peer = py::module_::import("pycollective.comm.arguments.numbers")
                              .attr("peer_number")(call.root, sends ? "dest" : "source", backend.attr("group"));
  return backend.attr("channel")(peer, sends);
}

template <size_t method>
Outcome run(const CallArguments& call) {
  constexpr bool sends = method == kSend;
  const py::object held = sends || method == recv ? channel_of(call, sends) : own_team(call.communicator);
  TeamCall& team = team_of(held);
  if constexpr (sends || method == recv) return team.message(call, sends);
  else if constexpr (method == allgatherv) return team.allgatherv(call);
  else if constexpr (method == alltoallv) return team.alltoallv(call);
  else if constexpr (method == kBarrier) return team.barrier(call);
  else {
    constexpr auto collective = static_cast<Collective>(method);
    constexpr const Traits& t = traits(collective);
    if (t.reduces && !t.averages() && is_avg(call.op))
      throw InvalidArgument(std::string(t.name) +
                            " does not take operator avg: the ranks' results have different numbers of inputs");
    return t.weighted ? team.weighted(collective, call) : team.collective(collective, call);
  }
}

// Handle(work, value) of pycollective.comm.handle, without the frame of its __init__.
PyObject* handle_of(Outcome outcome) {
  const py::object work = make_handle(std::move(outcome.task), outcome.result);
  auto handle = py::reinterpret_steal<py::object>(handle_type->tp_alloc(handle_type, 0));
  if (!handle || PyObject_SetAttr(handle.ptr(), work_name, work.ptr()) != 0 ||
      PyObject_SetAttr(handle.ptr(), value_name, outcome.result.ptr()) != 0)
    throw py::error_already_set();
  return handle.release().ptr();
}

// Adds the call's name, if it has one, to the current error.
void name_error(py::handle name) {
  if (!name || name.is_none()) return;
  py::error_already_set error;
  try {
    py::module_::import("pycollective.comm.collectives").attr("name_call")(error.value(), name);
  } catch (py::error_already_set&) {  // the import fails while Python ends: the error stays without its name
  }
  error.restore();
}

// Raises what is wrong with arguments that do not fit the signature.
PyObject* refuse(const Form& form, PyObject* self, const Given& given) {
  std::vector<PyObject*> all{self};
  all.insert(all.end(), given.values, given.values + given.count + given.named());
  PyObject* taken = PyObject_Vectorcall(form.described, all.data(), static_cast<size_t>(given.count) + 1, given.names);
  if (taken == nullptr) return nullptr;
  Py_DECREF(taken);  // as Python sees them, the names that do not fit are some of **options
  py::module_::import("pycollective.comm.arguments.options")
      .attr("refuse")(py::handle(form.described), py::handle(given.names));
  throw WrongType("wrong arguments");
}

template <size_t method, bool nonblocking>
PyObject* enter(PyObject* self, PyObject* const* values, Py_ssize_t count, PyObject* names) {
  const Given given{values, count, names};
  CallArguments call;
  try {
    if (!bind<method>(call, given)) return refuse(forms[method][nonblocking], self, given);
    call.communicator = self;
    call.nonblocking = nonblocking;
    set_defaults(call);
    if (call.name && !call.name.is_none()) check_name(call.name);
    Outcome outcome = run<method>(call);
    return outcome.task != nullptr ? handle_of(std::move(outcome)) : outcome.result.release().ptr();
  } catch (...) {
    set_error(std::current_exception());
    name_error(call.name);
    return nullptr;
  }
}

py::object borrow(PyObject* o) { return py::reinterpret_borrow<py::object>(o); }

PyObject* call(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  const bool plain = names == nullptr && count >= 10 && count <= 12 && Py_TYPE(self) == team_type;
  const auto collective = plain ? plain_int(args[0]) : std::nullopt, root = plain ? plain_int(args[5]) : std::nullopt;
  const auto step = count == 12 ? plain_int(args[11]) : 0;
  if (!collective || !root || !step || !PyBool_Check(args[9])) {
    std::vector<PyObject*> all{self};
    all.insert(all.end(), args, args + count + (names == nullptr ? 0 : PyTuple_GET_SIZE(names)));
    return PyObject_Vectorcall(team_call.described, all.data(), static_cast<size_t>(count) + 1, names);
  }
  try {
    return team_of(self)
        .call(*collective, borrow(args[1]), borrow(args[2]), borrow(args[3]), borrow(args[4]), *root, borrow(args[6]),
              borrow(args[7]), borrow(args[8]), args[9] == Py_True, borrow(count > 10 ? args[10] : Py_None), *step)
        .release()
        .ptr();
  } catch (...) {
    set_error(std::current_exception());
    return nullptr;
  }
}

using Function = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t, PyObject*);

void define(Form& form, std::string name, Function function) {
  form.name = std::move(name);
  form.definition = {form.name.c_str(), reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)),
                     METH_FASTCALL | METH_KEYWORDS, nullptr};
}

template <size_t... each>
void define_forms(std::index_sequence<each...>) {
  (define(forms[each][0], name_of_method(each), enter<each, false>), ...);
  (define(forms[each][1], std::string("i") + name_of_method(each), enter<each, true>), ...);
}

// A descriptor for the class `owner`, in place of the method that Python describes.
py::object descriptor_of(Form& form, py::handle owner, const py::object& described, std::string documentation) {
  form.described = described.inc_ref().ptr();
  form.documentation = std::move(documentation);
  form.definition.ml_doc = form.documentation.c_str();
  PyObject* descriptor = PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(owner.ptr()), &form.definition);
  if (descriptor == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(descriptor);
}

py::object method_of(const py::type& owner, const py::object& described, const std::string& name,
                     const std::string& signature, const py::type& handle) {
  if (handle_type == nullptr) {
    handle_type = reinterpret_cast<PyTypeObject*>(handle.inc_ref().ptr());
    communicator_type = reinterpret_cast<PyTypeObject*>(owner.inc_ref().ptr());
    team_slot = slot_of("_team");
    outgoing_slot = slot_of("_outgoing");
    incoming_slot = slot_of("_incoming");
  }
  for (auto& pair : forms)
    for (Form& form : pair)
      if (name == form.name)
        return descriptor_of(form, owner, described,
                             name + signature + "\n--\n\n" + std::string(py::str(described.attr("__doc__"))));
  throw InvalidArgument("there is no method named " + name);
}

void intern(Parameter& parameter) {
  if (parameter.text != nullptr) parameter.name = PyUnicode_InternFromString(parameter.text);
}

}  // namespace

py::object own_team(py::handle communicator) { return read_slot(communicator, team_slot); }

TeamCall& team_of(py::handle object) {
  const auto* instance = reinterpret_cast<py::detail::instance*>(object.ptr());
  if (Py_TYPE(object.ptr()) == team_type && instance->simple_layout && instance->simple_holder_constructed)
    return *static_cast<TeamCall*>(instance->simple_value_holder[0]);
  throw WrongType("a Team is needed, not " + std::string(py::str(py::type::of(object))));
}

void bind_methods(py::module_& m) {
  for (const auto& [name, text] : std::initializer_list<std::pair<PyObject**, const char*>>{
           {&work_name, "_work"},
           {&value_name, "_value"},
           {&default_op, "sum"},
       })
    *name = PyUnicode_InternFromString(text);
  for (size_t method = 0; method < methods; ++method) {
    named_parameters[method] = parameters_of(method);
    for (Parameter& parameter : named_parameters[method].each) intern(parameter);
  }
  for (Parameter& option : options) intern(option);
  define_forms(std::make_index_sequence<methods>());
  const py::type team = py::type::of<TeamCall>();
  team_type = reinterpret_cast<PyTypeObject*>(team.ptr());
  define(team_call, "call", call);
  const py::object described = team.attr("call");
  team.attr("call") = descriptor_of(team_call, team, described, py::str(described.attr("__doc__")));
  m.def("method_of", &method_of, py::arg("owner"), py::arg("described"), py::arg("name"), py::arg("signature"),
        py::arg("handle"),
        "A descriptor for the class `owner`: the method of this name, which `described` has the signature and the "
        "docstring of. A nonblocking form returns a `handle(work, value)`.");
}

}  // namespace pc
