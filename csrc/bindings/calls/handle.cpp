// A type of Python's C interface: making, awaiting and freeing an object of pybind11 takes as long as a call of 8
// bytes.
#include "bindings/calls/handle.h"

#include <algorithm>
#include <cmath>
#include <new>
#include <utility>

#include "bindings/interpreter.h"

namespace pc {
namespace {

struct Handle {
  PyObject head;
  std::shared_ptr<Task> task;
  py::object result;
};

PyTypeObject* native_handle = nullptr;

void deallocate(PyObject* self) {
  auto* handle = reinterpret_cast<Handle*>(self);
  std::destroy_at(&handle->task);
  std::destroy_at(&handle->result);
  PyTypeObject* const type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

bool wait_once(Task& task, double seconds) {
  const Released released;
  return task.wait(seconds);
}

// Of a method (timeout=None).  Throws error_already_set.
std::optional<double> timeout_of(PyObject* const* values, Py_ssize_t count, PyObject* names) {
  const Py_ssize_t named = names == nullptr ? 0 : PyTuple_GET_SIZE(names);
  const bool known = named == 0 || PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, 0), "timeout") == 0;
  if (count + named > 1 || !known) throw py::type_error("the only argument is timeout");
  if (count + named == 0 || values[0] == Py_None) return std::nullopt;
  return read_seconds(values[0]);
}

template <bool with_result>
PyObject* handle_wait(PyObject* self, PyObject* const* values, Py_ssize_t count, PyObject* names) {
  auto* handle = reinterpret_cast<Handle*>(self);
  try {
    const std::optional<double> seconds = timeout_of(values, count, names);
    const std::shared_ptr<Task> task = handle->task;
    if (task != nullptr) wait_for(*task, seconds);
    return Py_NewRef(with_result ? handle->result.ptr() : Py_None);
  } catch (...) {
    set_error(std::current_exception());
    return nullptr;
  }
}

PyObject* handle_test(PyObject* self, PyObject*) {
  const auto& task = reinterpret_cast<Handle*>(self)->task;
  return PyBool_FromLong(task == nullptr || task->done());
}

PyCFunction with_keywords(PyObject* (*method)(PyObject*, PyObject* const*, Py_ssize_t, PyObject*)) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(method));
}

PyMethodDef handle_methods[] = {
    {"wait", with_keywords(handle_wait<false>), METH_FASTCALL | METH_KEYWORDS,
     "wait(self: pycollective._core.Handle, timeout: float | None = None) -> None\n\n"
     "Block until the call has completed, at most `timeout` seconds. Raises what the call raised, or TimeoutError."},
    {"test", handle_test, METH_NOARGS,
     "test(self: pycollective._core.Handle) -> bool\n\nWhether the call has completed (also when it failed)."},
    {"result", with_keywords(handle_wait<true>), METH_FASTCALL | METH_KEYWORDS,
     "result(self: pycollective._core.Handle, timeout: float | None = None) -> typing.Any\n\n"
     "wait(), then the call's result."},
    {nullptr, nullptr, 0, nullptr}};

PyType_Slot handle_slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(deallocate)},
                              {Py_tp_methods, handle_methods},
                              {Py_tp_doc, const_cast<char*>("A nonblocking call in flight.")},
                              {0, nullptr}};

PyType_Spec handle_spec{"pycollective._core.Handle", sizeof(Handle), 0,
                        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, handle_slots};

}  // namespace

void wait_for(Task& task, std::optional<double> seconds) {
  if (seconds && std::isnan(*seconds)) throw InvalidArgument("timeout must be a number of seconds, not nan");
  // A small call often completes in less time than releasing the GIL takes.
  if (task.attempt()) return;
  const auto start = Clock::now();
  for (;;) {
    double turn = 0.1;
    if (seconds) turn = std::min(turn, *seconds - std::chrono::duration<double>(Clock::now() - start).count());
    if (wait_once(task, std::max(turn, 0.0))) return;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    if (seconds && turn <= 0) {
      const py::object type = py::module_::import("pycollective.errors").attr("TimeoutError");
      PyErr_SetString(type.ptr(), "the call has not completed yet; the handle can be waited for again");
      throw py::error_already_set();
    }
  }
}

py::object make_handle(std::shared_ptr<Task> task, py::object result) {
  auto made = py::reinterpret_steal<py::object>(native_handle->tp_alloc(native_handle, 0));
  if (!made) throw py::error_already_set();
  auto* handle = reinterpret_cast<Handle*>(made.ptr());
  new (&handle->task) std::shared_ptr<Task>(std::move(task));
  new (&handle->result) py::object(std::move(result));
  return made;
}

void bind_handle(py::module_& m) {
  PyObject* type = PyType_FromSpec(&handle_spec);
  if (type == nullptr) throw py::error_already_set();
  native_handle = reinterpret_cast<PyTypeObject*>(type);
  m.add_object("Handle", type);
}

}  // namespace pc
