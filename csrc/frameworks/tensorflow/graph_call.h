// One execution of an operation of TensorFlow's graph, as Python sees it: a GraphCall of
// pycollective/hvd/graph_call.py.
#pragma once

#include <functional>

#include "bindings/bindings.h"
#include "frameworks/tensorflow/c_api.h"

namespace pc::tensorflow {

// What Python provides.  Allocated once and never freed: kernels may outlive the interpreter.
struct Python {
  py::object run;  // (key, GraphCall): starts the operation
  py::object describe;  // (exception) -> (TF_Code, message)
  py::dict types;  // TF_DataType -> numpy.dtype
};
extern Python* python;

// All members need the GIL.
class GraphCall {
 public:
  GraphCall(TF_OpKernelContext* context, std::function<void()> completed);
  ~GraphCall();  // fails the operation if it has not completed: a graph must not wait for a call that was dropped
  GraphCall(const GraphCall&) = delete;

  py::object inputs() const { return inputs_; }
  py::object output(int index, const std::vector<int64_t>& shape);
  void done(const py::object& error);
  bool is_done() const { return context_ == nullptr; }

 private:
  void finish(TF_OpKernelContext* context, TF_Code code, const std::string& message);

  TF_OpKernelContext* context_;  // null once the operation has completed
  std::function<void()> completed_;  // the context may be freed as soon as it is called
  py::list inputs_;
};

// Marks an operation as failed.  Needs no GIL.
void fail(TF_OpKernelContext* context, TF_Code code, const std::string& message);

}  // namespace pc::tensorflow

template <> inline constexpr bool pc::is_bound<pc::tensorflow::GraphCall> = true;
