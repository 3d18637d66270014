// The latency path of Communicator.allreduce: a method of the Python class that is called without a Python frame.
// What it does not know (scaling, names, other libraries' arrays) goes to the Python method it stands before.
#include "bindings/team_call.h"

namespace pc {
namespace {

PyObject* general = nullptr;  // the Python method
PyTypeObject* team_type = nullptr;
PyObject *backend_name, *out_name, *op_name, *topology_name, *timeout_name, *default_op;
std::string documentation;

struct Arguments {
  PyObject* x = nullptr;
  PyObject* out = Py_None;
  PyObject* op = nullptr;
  PyObject* topology = Py_None;
  PyObject* timeout = Py_None;
};

bool parse(Arguments& a, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  if (count < 1 || count > 2) return false;
  a.x = args[0];
  if (count == 2) a.out = args[1];
  a.op = default_op;
  const Py_ssize_t named = names == nullptr ? 0 : PyTuple_GET_SIZE(names);
  for (Py_ssize_t i = 0; i < named; ++i) {
    PyObject* name = PyTuple_GET_ITEM(names, i);  // keyword names are interned: identity is enough
    PyObject* value = args[count + i];
    if (name == out_name && count == 1) a.out = value;
    else if (name == op_name) a.op = value;
    else if (name == topology_name) a.topology = value;
    else if (name == timeout_name) a.timeout = value;
    else return false;
  }
  return true;
}

// A communicator's backend, held for as long as the call lasts: another thread may give the communicator a new one.
py::object backend_of(PyObject* communicator) {
  PyObject* backend = PyObject_GetAttr(communicator, backend_name);
  if (backend == nullptr) PyErr_Clear();
  return py::reinterpret_steal<py::object>(backend);
}

// The team that a backend is; null if it is none of ours (the MPI rail).
TeamCall* team_of(const py::object& backend) {
  if (!backend || Py_TYPE(backend.ptr()) != team_type) return nullptr;
  const auto team = reinterpret_cast<py::detail::instance*>(backend.ptr())->get_value_and_holder();
  return team.holder_constructed() ? static_cast<TeamCall*>(team.value_ptr()) : nullptr;
}

// What pybind11 does for functions that it dispatches.
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

PyObject* allreduce(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  Arguments a;
  py::object backend;
  if (parse(a, args, count, names)) backend = backend_of(self);
  TeamCall* team = team_of(backend);
  if (team != nullptr) {
    const auto borrow = [](PyObject* o) { return py::reinterpret_borrow<py::object>(o); };
    try {
      py::object result =
          team->allreduce(borrow(a.x), borrow(a.out), borrow(a.op), borrow(a.topology), borrow(a.timeout));
      if (result.ptr() != Py_NotImplemented) return result.release().ptr();
    } catch (...) {
      set_error(std::current_exception());
      return nullptr;
    }
  }
  std::vector<PyObject*> all{self};
  all.insert(all.end(), args, args + count + (names == nullptr ? 0 : PyTuple_GET_SIZE(names)));
  return PyObject_Vectorcall(general, all.data(), static_cast<size_t>(count) + 1, names);
}

PyMethodDef definition = {"allreduce", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(allreduce)),
                          METH_FASTCALL | METH_KEYWORDS, nullptr};

}  // namespace

void bind_fast_path(py::module_& m) {
  backend_name = PyUnicode_InternFromString("_backend");
  out_name = PyUnicode_InternFromString("out");
  op_name = PyUnicode_InternFromString("op");
  topology_name = PyUnicode_InternFromString("topology");
  timeout_name = PyUnicode_InternFromString("timeout");
  default_op = PyUnicode_InternFromString("sum");
  m.def(
      "fast_allreduce",
      [](const py::type& owner, const py::object& method, const std::string& signature) {
        general = method.inc_ref().ptr();
        team_type = reinterpret_cast<PyTypeObject*>(py::type::of<TeamCall>().ptr());
        documentation = "allreduce" + signature + "\n--\n\n" + std::string(py::str(method.attr("__doc__")));
        definition.ml_doc = documentation.c_str();
        PyObject* descriptor = PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(owner.ptr()), &definition);
        if (descriptor == nullptr) throw py::error_already_set();
        return py::reinterpret_steal<py::object>(descriptor);
      },
      py::arg("owner"), py::arg("method"), py::arg("signature"),
      "A descriptor for the class `owner` that runs plain allreduces at once and others through `method`.");
}

}  // namespace pc
