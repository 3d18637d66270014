// Latency paths: methods that Python calls without a frame (the calls of Communicator, blocking and nonblocking) and
// without pybind11's argument conversion (Team.call).  What they do not handle (streams, arrays that C code
// cannot read; other argument types) is forwarded to the general method that each one fronts.
#include <Python.h>
#include <datetime.h>

#include <array>
#include <utility>

#include "bindings/calls/handle.h"
#include "bindings/calls/team_call.h"

namespace pc {
namespace {

// The methods of Communicator that plain arguments enter at once: every call of the core by its number, and those
// below.
constexpr auto kCalls = static_cast<size_t>(Collective::count);
enum Method : size_t { recv = kCalls, allgatherv, alltoallv, methods };

constexpr const char* name_of_method(size_t method) {
  if (method < kCalls) return traits(static_cast<Collective>(method)).name;
  return method == recv ? "recv" : method == allgatherv ? "allgatherv" : "alltoallv";
}

// A blocking or nonblocking form.
struct Form {
  PyMethodDef definition{};
  PyObject* general = nullptr;  // the method written in Python
  std::string name, documentation;
};

std::array<std::array<Form, 2>, methods> forms;  // [method][nonblocking]
Form team_call;
PyTypeObject* team_type = nullptr;
PyTypeObject* handle_type = nullptr;
PyObject *team_name, *outgoing_name, *incoming_name, *dest_name, *source_name, *root_name, *out_name, *op_name,
    *counts_name, *send_counts_name, *recv_counts_name, *topology_name, *timeout_name, *name_name, *prescale_name,
    *postscale_name, *graph_name, *step_name, *work_name, *value_name, *default_op, *avg_op, *reduce_op_name,
    *async_op_name;

// Arguments as Python passes them to a function without a frame.
struct Given {
  PyObject* const* values;
  Py_ssize_t count;  // positional ones, which come first
  PyObject* names;   // of the others; may be null

  Py_ssize_t named() const { return names == nullptr ? 0 : PyTuple_GET_SIZE(names); }
  PyObject* name(Py_ssize_t i) const { return PyTuple_GET_ITEM(names, i); }  // interned: comparing identity suffices
  PyObject* value(Py_ssize_t i) const { return values[count + i]; }
};

// Of a method (x, [middle,] out=None, **options); `middle`: what some methods take there, null where not given.
template <size_t middles>
struct Arguments {
  PyObject* x = nullptr;
  std::array<PyObject*, middles> middle{};
  PyObject* out = nullptr;
  PyObject* op = nullptr;
  PyObject* prescale = Py_None;
  PyObject* postscale = Py_None;
  PyObject* topology = Py_None;
  PyObject* timeout = Py_None;
};

bool is_avg(PyObject* op) { return PyUnicode_Check(op) && PyUnicode_CompareWithASCIIString(op, "avg") == 0; }

// A call's name; only errors show it.
bool is_plain_name(PyObject* name) {
  if (name == Py_None) return true;
  if (PyUnicode_CheckExact(name) && PyUnicode_AsUTF8(name) != nullptr) return true;
  PyErr_Clear();
  return false;
}

// False: the general method must parse them.
template <bool reduces, bool averages, size_t middles>
[[gnu::always_inline]] inline bool parse(Arguments<middles>& a, const Given& given,
                                         const std::array<PyObject*, middles>& middle_names) {
  Py_ssize_t at = 0;
  if (given.count < 1 || given.count > Py_ssize_t{2 + middles}) return false;
  a.x = given.values[at++];
  for (size_t m = 0; m < middles && at < given.count; ++m) a.middle[m] = given.values[at++];
  if (at < given.count) a.out = given.values[at++];
  for (Py_ssize_t i = 0; i < given.named(); ++i) {
    PyObject* name = given.name(i);
    if (name == name_name && is_plain_name(given.value(i))) continue;
    PyObject** into = nullptr;
    for (size_t m = 0; m < middles; ++m)
      if (name == middle_names[m]) into = &a.middle[m];
    if (name == out_name) into = &a.out;
    if (into != nullptr && *into != nullptr) return false;  // given twice
    if (name == op_name && reduces) into = &a.op;
    else if (name == prescale_name && reduces) into = &a.prescale;
    else if (name == postscale_name && reduces) into = &a.postscale;
    else if (name == topology_name) into = &a.topology;
    else if (name == timeout_name) into = &a.timeout;
    if (into == nullptr) return false;
    *into = given.value(i);
  }
  if (a.out == nullptr) a.out = Py_None;
  if (a.op == nullptr) a.op = default_op;
  return averages || a.op == default_op || !is_avg(a.op);
}

// A communicator's team, held for the duration of the call: another thread may free the communicator.
py::object own_team(PyObject* communicator) {
  PyObject* team = PyObject_GetAttr(communicator, team_name);
  if (team == nullptr) PyErr_Clear();
  return py::reinterpret_steal<py::object>(team);
}

// The object as a team; null if it is not one (None between hosts).
TeamCall* team_of(PyObject* object) {
  if (object == nullptr || Py_TYPE(object) != team_type) return nullptr;
  const auto team = reinterpret_cast<py::detail::instance*>(object)->get_value_and_holder();
  return team.holder_constructed() ? static_cast<TeamCall*>(team.value_ptr()) : nullptr;
}

py::object borrow(PyObject* o) { return py::reinterpret_borrow<py::object>(o); }

PyObject* call_general(PyObject* method, PyObject* self, const Given& given) {
  std::vector<PyObject*> all{self};
  all.insert(all.end(), given.values, given.values + given.count + given.named());
  return PyObject_Vectorcall(method, all.data(), static_cast<size_t>(given.count) + 1, given.names);
}

// An int, without conversion from other types.
std::optional<int32_t> plain_int(PyObject* o) {
  if (!PyLong_CheckExact(o)) return std::nullopt;
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(o, &overflow);
  if (overflow != 0 || value != static_cast<int32_t>(value)) return std::nullopt;
  return static_cast<int32_t>(value);
}

std::optional<double> plain_factor(PyObject* factor) {
  if (factor == Py_None) return 1.0;
  if (!PyFloat_CheckExact(factor)) return std::nullopt;
  return PyFloat_AS_DOUBLE(factor);
}

template <size_t middles>
PlainCall plain_call(const Arguments<middles>& a, int32_t root, bool nonblocking) {
  return {a.x, a.out, a.op, a.topology, a.timeout, root, nonblocking};
}

// A weighted collective, of a graph whose matrix is remembered.
template <Collective collective>
Outcome run_weighted(PyObject* self, const Given& given, bool nonblocking) {
  Arguments<2> a;
  if (!parse<false, false>(a, given, {graph_name, step_name}) || a.middle[0] == nullptr || a.topology != Py_None)
    return {};
  const auto step = a.middle[1] == nullptr ? 0 : plain_int(a.middle[1]);
  const py::object held = own_team(self);
  TeamCall* team = team_of(held.ptr());
  if (team == nullptr || !step || *step < 0) return {};
  PlainCall call = plain_call(a, -1, nonblocking);
  const py::object matrix = team->matrix(a.middle[0], *step);
  if (matrix.is_none()) return {};
  call.topology = matrix;
  call.step = *step;
  return team->call_plain(collective, call);
}

template <Collective collective>
Outcome run_collective(PyObject* self, const Given& given, bool nonblocking) {
  constexpr const Traits& t = traits(collective);
  Arguments<t.rooted> a;
  std::array<PyObject*, t.rooted> middle;
  middle.fill(root_name);
  if (!parse<t.reduces, t.averages()>(a, given, middle)) return {};
  std::optional<int32_t> root = t.rooted ? 0 : -1;
  for (PyObject* given_root : a.middle)
    if (given_root != nullptr) root = plain_int(given_root);
  const py::object held = own_team(self);
  TeamCall* team = team_of(held.ptr());
  const auto before = plain_factor(a.prescale), after = plain_factor(a.postscale);
  if (team == nullptr || !root || !before || !after) return {};
  PlainCall call = plain_call(a, *root, nonblocking);
  call.scaling.prescale = *before;
  call.scaling.postscale = *after;
  return team->call_plain(collective, call);
}

Outcome run_allgatherv(PyObject* self, const Given& given, bool nonblocking) {
  Arguments<1> a;
  if (!parse<false, false>(a, given, {counts_name})) return {};
  const py::object held = own_team(self);
  TeamCall* team = team_of(held.ptr());
  if (team == nullptr) return {};
  return team->allgatherv(plain_call(a, -1, nonblocking), a.middle[0]);
}

Outcome run_alltoallv(PyObject* self, const Given& given, bool nonblocking) {
  Arguments<2> a;
  if (!parse<false, false>(a, given, {send_counts_name, recv_counts_name})) return {};
  const py::object held = own_team(self);
  TeamCall* team = team_of(held.ptr());
  if (team == nullptr) return {};
  return team->alltoallv(plain_call(a, -1, nonblocking), a.middle[0], a.middle[1]);
}

Outcome run_barrier(PyObject* self, const Given& given, bool nonblocking) {
  PyObject* timeout = Py_None;
  if (given.count != 0) return {};
  for (Py_ssize_t i = 0; i < given.named(); ++i) {
    if (given.name(i) == timeout_name) timeout = given.value(i);
    else if (given.name(i) != name_name || !is_plain_name(given.value(i))) return {};
  }
  const py::object held = own_team(self);
  TeamCall* team = team_of(held.ptr());
  if (team == nullptr) return {};
  const py::object none = py::none();
  return team->barrier({none, none, borrow(default_op), none, borrow(timeout), -1, nonblocking});
}

// Sends an array to a rank, or receives one, over an existing channel.
template <bool sends>
Outcome run_message(PyObject* self, const Given& given, bool nonblocking) {
  PyObject* peer = given.count == 2 ? given.values[1] : nullptr;
  PyObject* timeout = Py_None;
  if (given.count < 1 || given.count > 2) return {};
  for (Py_ssize_t i = 0; i < given.named(); ++i) {
    PyObject* name = given.name(i);
    if (name == (sends ? dest_name : source_name) && peer == nullptr) peer = given.value(i);
    else if (name == timeout_name) timeout = given.value(i);
    else return {};
  }
  if (peer == nullptr || !PyLong_CheckExact(peer)) return {};
  const auto channels =
      py::reinterpret_steal<py::object>(PyObject_GetAttr(self, sends ? outgoing_name : incoming_name));
  if (!channels) PyErr_Clear();
  if (!channels || !PyDict_CheckExact(channels.ptr())) return {};
  const py::object held = borrow(PyDict_GetItem(channels.ptr(), peer));
  TeamCall* team = team_of(held.ptr());
  if (team == nullptr) return {};
  const py::object none = py::none();
  return team->message(borrow(given.values[0]), sends,
                       {none, none, borrow(default_op), none, borrow(timeout), 0, nonblocking});
}

template <size_t method>
Outcome run(PyObject* self, const Given& given, bool nonblocking) {
  constexpr auto send = static_cast<size_t>(Collective::send), barrier = static_cast<size_t>(Collective::barrier);
  if constexpr (method == send || method == recv) return run_message<method == send>(self, given, nonblocking);
  else if constexpr (method == allgatherv) return run_allgatherv(self, given, nonblocking);
  else if constexpr (method == alltoallv) return run_alltoallv(self, given, nonblocking);
  else if constexpr (method == barrier) return run_barrier(self, given, nonblocking);
  else if constexpr (kCollectives[method].weighted)
    return run_weighted<static_cast<Collective>(method)>(self, given, nonblocking);
  else return run_collective<static_cast<Collective>(method)>(self, given, nonblocking);
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
void name_error(const Given& given) {
  for (Py_ssize_t i = 0; i < given.named(); ++i) {
    if (given.name(i) != name_name || given.value(i) == Py_None) continue;
    py::error_already_set error;
    try {
      py::module_::import("pycollective.comm.collectives").attr("name_call")(error.value(), borrow(given.value(i)));
    } catch (py::error_already_set&) {  // the import fails while Python ends: the error stays without its name
    }
    error.restore();
  }
}

template <size_t method, bool nonblocking>
PyObject* enter(PyObject* self, PyObject* const* values, Py_ssize_t count, PyObject* names) {
  const Given given{values, count, names};
  try {
    Outcome outcome = run<method>(self, given, nonblocking);
    if (outcome.result) return nonblocking ? handle_of(std::move(outcome)) : outcome.result.release().ptr();
  } catch (...) {
    set_error(std::current_exception());
    name_error(given);
    return nullptr;
  }
  return call_general(forms[method][nonblocking].general, self, given);
}

PyObject* call(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  const Given given{args, count, names};
  TeamCall* team = names == nullptr && count >= 10 && count <= 12 ? team_of(self) : nullptr;
  const auto collective = team == nullptr ? std::nullopt : plain_int(args[0]);
  const auto root = team == nullptr ? std::nullopt : plain_int(args[5]);
  const auto step = count == 12 ? plain_int(args[11]) : 0;
  if (!collective || !root || !step || !PyBool_Check(args[9])) return call_general(team_call.general, self, given);
  try {
    return team
        ->call(*collective, borrow(args[1]), borrow(args[2]), borrow(args[3]), borrow(args[4]), *root, borrow(args[6]),
               borrow(args[7]), borrow(args[8]), args[9] == Py_True, borrow(count > 10 ? args[10] : Py_None), *step)
        .release()
        .ptr();
  } catch (...) {
    set_error(std::current_exception());
    return nullptr;
  }
}

py::object attribute(PyObject* object, PyObject* name) {
  PyObject* found = PyObject_GetAttr(object, name);
  if (found == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(found);
}

bool equal(const py::object& one, PyObject* other) {
  const int same = PyObject_RichCompareBool(one.ptr(), other, Py_EQ);
  if (same < 0) throw py::error_already_set();
  return same == 1;
}

// `unset`: in place of a negative duration.
py::object seconds_of(const py::object& duration, PyObject* unset) {
  if (!PyDelta_Check(duration.ptr())) return borrow(unset);
  const double days = PyDateTime_DELTA_GET_DAYS(duration.ptr());
  if (days < 0) return borrow(unset);
  return py::float_(86400 * days + PyDateTime_DELTA_GET_SECONDS(duration.ptr()) +
                    1e-6 * PyDateTime_DELTA_GET_MICROSECONDS(duration.ptr()));
}

// The latency path of a torch.distributed process group: `self` is a tuple of a communicator, the timeout of calls
// whose options have none, and torch's operators SUM and AVG.  See the docstring of reducer_in_place.
PyObject* reduce_in_place(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  if (count != 2) {
    PyErr_SetString(PyExc_TypeError, "inputs and options are needed");
    return nullptr;
  }
  try {
    PyObject *const inputs = args[0], *const options = args[1];
    const py::object held = own_team(PyTuple_GET_ITEM(self, 0));
    TeamCall* team = team_of(held.ptr());
    if (team == nullptr || !PyList_CheckExact(inputs) || PyList_GET_SIZE(inputs) != 1 ||
        !is_plain_tensor(PyList_GET_ITEM(inputs, 0)))
      return Py_NewRef(Py_NotImplemented);
    const py::object x = borrow(PyList_GET_ITEM(inputs, 0)), op = attribute(options, reduce_op_name);
    PyObject* const name = equal(op, PyTuple_GET_ITEM(self, 2))   ? default_op
                           : equal(op, PyTuple_GET_ITEM(self, 3)) ? avg_op
                                                                  : nullptr;
    if (name == nullptr) return Py_NewRef(Py_NotImplemented);
    const LateTimeout timeout = [&] { return seconds_of(attribute(options, timeout_name), PyTuple_GET_ITEM(self, 1)); };
    const bool nonblocking = attribute(options, async_op_name).ptr() == Py_True;
    const py::object submitted_timeout = nonblocking ? timeout() : py::none();
    PlainCall call{x, x, name, Py_None, submitted_timeout, -1, nonblocking};
    if (!nonblocking) call.late_timeout = &timeout;
    Outcome outcome = team->call_plain(Collective::allreduce, call);
    if (!outcome.result) return Py_NewRef(Py_NotImplemented);
    if (!nonblocking) return Py_NewRef(Py_None);
    return make_handle(std::move(outcome.task), std::move(outcome.result)).release().ptr();
  } catch (...) {
    set_error(std::current_exception());
    return nullptr;
  }
}

PyMethodDef reduce_in_place_definition{"reduce_in_place",
                                       reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(reduce_in_place)),
                                       METH_FASTCALL, "What reducer_in_place has returned."};

py::object reducer_in_place(const py::object& communicator, double timeout, const py::object& sum,
                            const py::object& avg) {
  const py::tuple self = py::make_tuple(communicator, timeout, sum, avg);
  return py::reinterpret_steal<py::object>(PyCFunction_New(&reduce_in_place_definition, self.ptr()));
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

// A descriptor that `owner` calls instead of the general method.
py::object front(Form& form, PyObject* owner, const py::object& general, std::string documentation) {
  form.general = general.inc_ref().ptr();
  form.documentation = std::move(documentation);
  form.definition.ml_doc = form.documentation.c_str();
  PyObject* descriptor = PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(owner), &form.definition);
  if (descriptor == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(descriptor);
}

py::object fast_method(const py::type& owner, const py::object& method, const std::string& name,
                       const std::string& signature, const py::type& handle) {
  if (handle_type == nullptr) handle_type = reinterpret_cast<PyTypeObject*>(handle.inc_ref().ptr());
  for (auto& pair : forms)
    for (Form& form : pair)
      if (name == form.name)
        return front(form, owner.ptr(), method,
                     name + signature + "\n--\n\n" + std::string(py::str(method.attr("__doc__"))));
  throw InvalidArgument("there is no method named " + name);
}

}  // namespace

void bind_fast_path(py::module_& m) {
  PyDateTime_IMPORT;
  for (const auto& [name, text] : std::initializer_list<std::pair<PyObject**, const char*>>{
           {&team_name, "_team"},
           {&outgoing_name, "_outgoing"},
           {&incoming_name, "_incoming"},
           {&dest_name, "dest"},
           {&source_name, "source"},
           {&root_name, "root"},
           {&out_name, "out"},
           {&op_name, "op"},
           {&counts_name, "counts"},
           {&send_counts_name, "send_counts"},
           {&recv_counts_name, "recv_counts"},
           {&topology_name, "topology"},
           {&timeout_name, "timeout"},
           {&name_name, "name"},
           {&prescale_name, "prescale"},
           {&postscale_name, "postscale"},
           {&graph_name, "graph"},
           {&step_name, "step"},
           {&work_name, "_work"},
           {&value_name, "_value"},
           {&default_op, "sum"},
           {&avg_op, "avg"},
           {&reduce_op_name, "reduceOp"},
           {&async_op_name, "asyncOp"},
       })
    *name = PyUnicode_InternFromString(text);
  define_forms(std::make_index_sequence<methods>());
  const py::type team = py::type::of<TeamCall>();
  team_type = reinterpret_cast<PyTypeObject*>(team.ptr());
  define(team_call, "call", call);
  const py::object general = team.attr("call");
  team.attr("call") = front(team_call, team.ptr(), general, py::str(general.attr("__doc__")));
  m.def(
      "reducer_in_place", &reducer_in_place, py::arg("communicator"), py::arg("timeout"), py::arg("sum"),
      py::arg("avg"),
      "A function (inputs, options) that makes a process group's allreduces in place of a list of one plain torch "
      "tensor, with torch's AllreduceOptions. It returns None, or the Handle of an asynchronous call; NotImplemented, "
      "without effect: only the group's method takes these arguments, or reports what is wrong with them. `timeout`: "
      "in seconds, if the options have none; `sum`, `avg`: torch's operators of these names.");
  m.def("fast_method", &fast_method, py::arg("owner"), py::arg("method"), py::arg("name"), py::arg("signature"),
        py::arg("handle"),
        "A descriptor for the class `owner` that runs plain calls of a method directly and others through `method`. "
        "A nonblocking form returns a `handle(work, value)`.");
}

}  // namespace pc
