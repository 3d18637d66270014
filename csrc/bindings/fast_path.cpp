// Latency paths: methods that Python calls without a frame (the collectives of Communicator) and without pybind11's
// argument conversion (Team.call).  What they do not handle (scaling, names, other libraries' arrays; keywords, other
// argument types) is forwarded to the general method that each one fronts.
#include <array>
#include <utility>

#include "bindings/team_call.h"

namespace pc {
namespace {

constexpr auto kMethods = static_cast<size_t>(Collective::count);

std::array<PyObject*, kMethods> general{};  // the methods written in Python
PyObject* general_call = nullptr;
std::array<PyObject*, 2> general_message{};  // recv, send
PyTypeObject* team_type = nullptr;
PyObject *team_name, *outgoing_name, *incoming_name, *dest_name, *source_name, *root_name, *out_name, *op_name,
    *topology_name, *timeout_name, *default_op;
std::array<std::string, kMethods> documentation;
std::string call_documentation, message_documentation[2];

struct Arguments {
  PyObject* x = nullptr;
  PyObject* root = nullptr;  // null: the default
  PyObject* out = nullptr;
  PyObject* op = nullptr;
  PyObject* topology = Py_None;
  PyObject* timeout = Py_None;
};

// Arguments of a method (x, [root,] out=None, **options).  False: the general method must parse them.
template <Collective collective>
[[gnu::always_inline]] inline bool parse(Arguments& a, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  constexpr const Traits& t = traits(collective);
  Py_ssize_t at = 0;
  if (count < 1 || count > 2 + t.rooted) return false;
  a.x = args[at++];
  if (t.rooted && at < count) a.root = args[at++];
  if (at < count) a.out = args[at++];
  const Py_ssize_t named = names == nullptr ? 0 : PyTuple_GET_SIZE(names);
  for (Py_ssize_t i = 0; i < named; ++i) {
    PyObject* name = PyTuple_GET_ITEM(names, i);  // keyword names are interned: comparing identity suffices
    PyObject* value = args[count + i];
    if (name == out_name && a.out == nullptr) a.out = value;
    else if (name == root_name && t.rooted && a.root == nullptr) a.root = value;
    else if (name == op_name && t.averages()) a.op = value;
    else if (name == topology_name) a.topology = value;
    else if (name == timeout_name) a.timeout = value;
    else return false;
  }
  if (a.out == nullptr) a.out = Py_None;
  if (a.op == nullptr) a.op = default_op;
  return true;
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

// The exception translation that pybind11 does for functions that it dispatches.
void set_error(std::exception_ptr pointer) {
  try {
    translate(pointer);
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const py::builtin_exception& error) {
    error.set_error();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
}

PyObject* call_general(PyObject* method, PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  std::vector<PyObject*> all{self};
  all.insert(all.end(), args, args + count + (names == nullptr ? 0 : PyTuple_GET_SIZE(names)));
  return PyObject_Vectorcall(method, all.data(), static_cast<size_t>(count) + 1, names);
}

// An int, without conversion from other types.
std::optional<int32_t> plain_int(PyObject* o) {
  if (!PyLong_CheckExact(o)) return std::nullopt;
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(o, &overflow);
  if (overflow != 0 || value != static_cast<int32_t>(value)) return std::nullopt;
  return static_cast<int32_t>(value);
}

template <Collective collective>
PyObject* collective_method(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  constexpr const Traits& t = traits(collective);
  Arguments a;
  py::object held;
  if (parse<collective>(a, args, count, names)) held = own_team(self);
  TeamCall* team = team_of(held.ptr());
  const auto root = a.root == nullptr ? std::optional<int32_t>(t.rooted ? 0 : -1) : plain_int(a.root);
  if (team != nullptr && root) {
    try {
      constexpr auto run = t.in_blocks() ? &TeamCall::call_blocks : &TeamCall::call_elementwise;
      py::object result = (team->*run)(collective, borrow(a.x), *root, borrow(a.out), borrow(a.op), borrow(a.topology),
                                       borrow(a.timeout));
      if (result.ptr() != Py_NotImplemented) return result.release().ptr();
    } catch (...) {
      set_error(std::current_exception());
      return nullptr;
    }
  }
  return call_general(general[static_cast<size_t>(collective)], self, args, count, names);
}

PyObject* call(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  TeamCall* team = names == nullptr && (count == 10 || count == 11) ? team_of(self) : nullptr;
  const auto collective = team == nullptr ? std::nullopt : plain_int(args[0]);
  const auto root = team == nullptr ? std::nullopt : plain_int(args[5]);
  if (!collective || !root || !PyBool_Check(args[9])) return call_general(general_call, self, args, count, names);
  try {
    return team
        ->call(*collective, borrow(args[1]), borrow(args[2]), borrow(args[3]), borrow(args[4]), *root, borrow(args[6]),
               borrow(args[7]), borrow(args[8]), args[9] == Py_True, borrow(count == 11 ? args[10] : Py_None))
        .release()
        .ptr();
  } catch (...) {
    set_error(std::current_exception());
    return nullptr;
  }
}

// Sends a plain array to a rank, or receives one, over an existing channel.
template <bool sends>
PyObject* message_method(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  PyObject* peer = count == 2 ? args[1] : nullptr;
  PyObject* timeout = Py_None;
  bool plain = count == 1 || count == 2;
  const Py_ssize_t named = names == nullptr ? 0 : PyTuple_GET_SIZE(names);
  for (Py_ssize_t i = 0; plain && i < named; ++i) {
    PyObject* name = PyTuple_GET_ITEM(names, i);
    if (name == (sends ? dest_name : source_name) && peer == nullptr) peer = args[count + i];
    else if (name == timeout_name) timeout = args[count + i];
    else plain = false;
  }
  if (plain && peer != nullptr && PyLong_CheckExact(peer) && is_numpy(args[0])) {
    const auto channels =
        py::reinterpret_steal<py::object>(PyObject_GetAttr(self, sends ? outgoing_name : incoming_name));
    if (!channels) PyErr_Clear();
    PyObject* found = channels && PyDict_CheckExact(channels.ptr()) ? PyDict_GetItem(channels.ptr(), peer) : nullptr;
    const py::object held = borrow(found);
    if (TeamCall* team = team_of(held.ptr())) {
      const py::object array = borrow(args[0]), none = py::none();
      try {
        const py::object result =
            team->call(static_cast<int>(Collective::send), sends ? array : none, sends ? none : array,
                       borrow(default_op), none, 0, none, none, borrow(timeout), false, none);
        if (result.ptr() != Py_NotImplemented) return (sends ? none : array).inc_ref().ptr();
      } catch (...) {
        set_error(std::current_exception());
        return nullptr;
      }
    }
  }
  return call_general(general_message[sends], self, args, count, names);
}

using Function = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t, PyObject*);

template <Function function> PyMethodDef definition(const char* name) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)), METH_FASTCALL | METH_KEYWORDS,
          nullptr};
}

// The method definitions of all collectives, by number.
template <size_t... numbers>
std::array<PyMethodDef, kMethods> definitions(std::index_sequence<numbers...>) {
  return {definition<collective_method<static_cast<Collective>(numbers)>>(
      traits(static_cast<Collective>(numbers)).name)...};
}

auto collective_definitions = definitions(std::make_index_sequence<kMethods>());
PyMethodDef call_definition = definition<call>("call");
PyMethodDef message_definitions[2] = {definition<message_method<false>>("recv"),
                                      definition<message_method<true>>("send")};

py::object describe(PyMethodDef& method, const std::string& documentation, PyObject* owner) {
  method.ml_doc = documentation.c_str();
  PyObject* descriptor = PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(owner), &method);
  if (descriptor == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(descriptor);
}

}  // namespace

void bind_fast_path(py::module_& m) {
  team_name = PyUnicode_InternFromString("_team");
  outgoing_name = PyUnicode_InternFromString("_outgoing");
  incoming_name = PyUnicode_InternFromString("_incoming");
  dest_name = PyUnicode_InternFromString("dest");
  source_name = PyUnicode_InternFromString("source");
  root_name = PyUnicode_InternFromString("root");
  out_name = PyUnicode_InternFromString("out");
  op_name = PyUnicode_InternFromString("op");
  topology_name = PyUnicode_InternFromString("topology");
  timeout_name = PyUnicode_InternFromString("timeout");
  default_op = PyUnicode_InternFromString("sum");
  const py::type team = py::type::of<TeamCall>();
  team_type = reinterpret_cast<PyTypeObject*>(team.ptr());
  general_call = py::object(team.attr("call")).release().ptr();
  call_documentation = py::str(py::handle(general_call).attr("__doc__"));
  team.attr("call") = describe(call_definition, call_documentation, team.ptr());
  m.def(
      "fast_method",
      [](const py::type& owner, const py::object& method, const std::string& name, const std::string& signature) {
        const std::string text = name + signature + "\n--\n\n" + std::string(py::str(method.attr("__doc__")));
        for (const size_t sends : {0, 1}) {
          if (name != message_definitions[sends].ml_name) continue;
          general_message[sends] = method.inc_ref().ptr();
          return describe(message_definitions[sends], message_documentation[sends] = text, owner.ptr());
        }
        for (size_t i = 0; i < kMethods; ++i) {
          if (name != collective_definitions[i].ml_name) continue;
          general[i] = method.inc_ref().ptr();
          return describe(collective_definitions[i], documentation[i] = text, owner.ptr());
        }
        throw InvalidArgument("there is no method named " + name);
      },
      py::arg("owner"), py::arg("method"), py::arg("name"), py::arg("signature"),
      "A descriptor for the class `owner` that runs plain calls of a method directly and others through `method`.");
}

}  // namespace pc
