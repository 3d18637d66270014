// The latency path of a torch.distributed process group.
#include <Python.h>
#include <datetime.h>

#include <utility>

#include "bindings/calls/handle.h"
#include "bindings/calls/team_call.h"

namespace pc {
namespace {

PyObject *sum_name, *avg_name, *reduce_op_name, *async_op_name, *timeout_name;

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
  if (!PyDelta_Check(duration.ptr())) return py::reinterpret_borrow<py::object>(unset);
  const double days = PyDateTime_DELTA_GET_DAYS(duration.ptr());
  if (days < 0) return py::reinterpret_borrow<py::object>(unset);
  return py::float_(86400 * days + PyDateTime_DELTA_GET_SECONDS(duration.ptr()) +
                    1e-6 * PyDateTime_DELTA_GET_MICROSECONDS(duration.ptr()));
}

// `self` is a tuple of a communicator, the timeout of calls whose options have none, and torch's operators SUM and AVG.
// See the docstring of reducer_in_place.
PyObject* reduce_in_place(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  if (count != 2) {
    PyErr_SetString(PyExc_TypeError, "inputs and options are needed");
    return nullptr;
  }
  try {
    PyObject *const inputs = args[0], *const options = args[1];
    CallArguments call;
    call.communicator = PyTuple_GET_ITEM(self, 0);
    const py::object held = own_team(call.communicator);
    if (!PyList_CheckExact(inputs) || PyList_GET_SIZE(inputs) != 1) return Py_NewRef(Py_NotImplemented);
    const auto tensor = py::reinterpret_borrow<py::object>(PyList_GET_ITEM(inputs, 0));
    if (!is_plain_tensor(tensor)) return Py_NewRef(Py_NotImplemented);
    const py::object op = attribute(options, reduce_op_name);
    if (equal(op, PyTuple_GET_ITEM(self, 2))) call.op = sum_name;
    else if (equal(op, PyTuple_GET_ITEM(self, 3))) call.op = avg_name;
    else return Py_NewRef(Py_NotImplemented);
    const LateTimeout timeout = [&] { return seconds_of(attribute(options, timeout_name), PyTuple_GET_ITEM(self, 1)); };
    call.nonblocking = attribute(options, async_op_name).ptr() == Py_True;
    const py::object submitted_timeout = call.nonblocking ? timeout() : py::none();
    PlainArray x;  // read last: Python may run before, and change the tensor
    if (!read_plain(tensor, true, x)) return Py_NewRef(Py_NotImplemented);
    call.x = call.out = tensor;
    call.topology = Py_None;
    call.timeout = submitted_timeout;
    if (!call.nonblocking) call.late_timeout = &timeout;
    Outcome outcome = team_of(held).allreduce_in_place(call, x);
    if (!call.nonblocking) return Py_NewRef(Py_None);
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

}  // namespace

void bind_allreduce_in_place(py::module_& m) {
  PyDateTime_IMPORT;
  for (const auto& [name, text] : std::initializer_list<std::pair<PyObject**, const char*>>{
           {&sum_name, "sum"},
           {&avg_name, "avg"},
           {&reduce_op_name, "reduceOp"},
           {&async_op_name, "asyncOp"},
           {&timeout_name, "timeout"},
       })
    *name = PyUnicode_InternFromString(text);
  m.def(
      "reducer_in_place", &reducer_in_place, py::arg("communicator"), py::arg("timeout"), py::arg("sum"),
      py::arg("avg"),
      "A function (inputs, options) that makes a process group's allreduces in place of a list of one plain torch "
      "tensor, with torch's AllreduceOptions. It returns None, or the Handle of an asynchronous call; NotImplemented, "
      "without effect: only the group's method takes these arguments, or reports what is wrong with them. `timeout`: "
      "in seconds, if the options have none; `sum`, `avg`: torch's operators of these names.");
}

}  // namespace pc
