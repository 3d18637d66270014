// Calls of Python functions as custom calls of XLA, on views of its memory.
#pragma once

#include "bindings/bindings.h"
#include "frameworks/completion.h"
#include "frameworks/jax/xla_ffi.h"

namespace pc::jax {

// What Python provides.  Allocated once and never freed: executables may run while Python ends.
struct Python {
  py::dict starts;    // number -> Start, see pycollective/hvd/graph_call.py
  py::dict types;     // XLA's number of an element type -> numpy.dtype
  py::object describe;  // (exception) -> text
};
extern Python* python;

// One execution, as Python sees it: a GraphCall of pycollective/hvd/graph_call.py.  All members need the GIL.
class GraphCall {
 public:
  GraphCall(const xla::CallFrame& frame, Completion& completion);
  ~GraphCall();  // fails the call if it has not completed: XLA must not wait for a call that was dropped
  GraphCall(const GraphCall&) = delete;

  const py::list& inputs() const { return inputs_; }
  py::object output(int64_t index, const std::vector<int64_t>& shape) const;
  void done(const py::object& error);
  bool is_done() const { return completion_ == nullptr; }

 private:
  const xla::CallFrame* frame_;  // null, as is the completion, once the call has completed
  Completion* completion_;
  py::list inputs_;
};

xla::Error* run_python(xla::CallFrame* frame);

}  // namespace pc::jax

template <> inline constexpr bool pc::is_bound<pc::jax::GraphCall> = true;
