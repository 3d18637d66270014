#include <Python.h>

#include <new>

#include "base/status.h"
#include "bindings/bindings.h"
#include "bindings/interpreter.h"
#include "executor/cpu/team.h"

namespace pc {

const char* class_of(Fault fault) {
  switch (fault) {
    case Fault::mismatch: return "MismatchError";
    case Fault::timeout: return "TimeoutError";
    case Fault::peer_lost: return "PeerLostError";
    case Fault::nested: return "NestedCallError";
    default: return "CommunicatorError";
  }
}

namespace {

void raise_fault(const CommunicatorFault& fault) {
  const py::object type = py::module_::import("pycollective.errors").attr(class_of(fault.fault));
  const py::object error = fault.fault == Fault::peer_lost ? type(fault.what(), fault.culprit) : type(fault.what());
  PyErr_SetObject(type.ptr(), error.ptr());
}

}  // namespace

void translate(std::exception_ptr pointer) {
  try {
    if (pointer) std::rethrow_exception(pointer);
  } catch (const CommunicatorFault& fault) {
    // An exception from a signal handler (KeyboardInterrupt) takes precedence.
    if (PyErr_Occurred() == nullptr) raise_fault(fault);
  } catch (const InvalidArgument& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
  } catch (const WrongType& error) {
    PyErr_SetString(PyExc_TypeError, error.what());
  } catch (const SystemFailure& error) {
    PyErr_SetString(PyExc_OSError, error.what());
  } catch (const py::cast_error& error) {  // of a list's element or an attribute
    PyErr_SetString(PyExc_TypeError, error.what());
  }
}

void set_error(std::exception_ptr pointer) {
  try {
    translate(std::move(pointer));
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const py::builtin_exception& error) {
    error.set_error();
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
}

namespace {

// Makes a blocked call interruptible by Ctrl-C: runs Python's signal handlers if this is the main thread.
bool signal_pending() {
  const Acquired gil;
  return gil && PyErr_CheckSignals() != 0;
}

}  // namespace
}  // namespace pc

PYBIND11_MODULE(_core, m) {
  m.doc() = "The native core of pycollective: executor, windows and element types. Private; use pycollective.";
  py::register_exception_translator(pc::translate);
  pc::Team::interrupted = pc::signal_pending;
  pc::bind_tables(m);
  pc::bind_schedule(m);
  pc::bind_segment(m);
  pc::bind_heap(m);
  pc::bind_array(m);
  pc::bind_call_arrays(m);
  pc::bind_dlpack(m);
  pc::bind_handle(m);
  pc::bind_ledger(m);
  pc::bind_ucx(m);
  pc::bind_team(m);
  pc::bind_table_directory(m);
  pc::bind_carriers(m);
  pc::bind_engine(m);
  pc::bind_methods(m);
  pc::bind_allreduce_in_place(m);
  pc::bind_jax(m);
  pc::bind_tensorflow(m);
}
