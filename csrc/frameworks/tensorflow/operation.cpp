// The operation that TensorFlow's graphs contain: a call, with any number of inputs and results and a key, by which
// Python finds what to start.  It is stateful: tf.function runs such operations in program order.
#include <pybind11/stl.h>

#include "base/status.h"
#include "bindings/interpreter.h"
#include "frameworks/tensorflow/graph_call.h"
#include "frameworks/tensorflow/xla.h"

namespace pc::tensorflow {
namespace {

constexpr const char* kCall = "PycollectiveCall";

// A kernel is its key.
void* create_kernel(TF_OpKernelConstruction* construction) {
  auto* key = new int64_t{0};
  const Status status;
  tf.TF_OpKernelConstruction_GetAttrInt64(construction, "key", key, status);
  if (tf.TF_GetCode(status) != TF_OK) tf.TF_OpKernelConstruction_Failure(construction, status);
  return key;
}

void delete_kernel(void* kernel) { delete static_cast<int64_t*>(kernel); }

// Returns once the call has been started.
void start(int64_t key, TF_OpKernelContext* context, const std::function<void()>& completed) {
  std::shared_ptr<GraphCall> call;
  try {
    call = std::make_shared<GraphCall>(context, completed);
  } catch (const std::exception& error) {  // nobody else has `completed`
    fail(context, TF_INTERNAL, error.what());
    const Released released;
    return completed();
  }
  try {
    python->run(key, call);
  } catch (py::error_already_set& error) {
    if (call->is_done()) error.discard_as_unraisable("an operation of TensorFlow's graph");
    else call->done(error.value());
  }
}

void compute_call(void* kernel, TF_OpKernelContext* context, void* done) {
  const std::function<void()> completed = *static_cast<std::function<void()>*>(done);
  {
    const Acquired gil;
    if (gil) return start(*static_cast<int64_t*>(kernel), context, completed);
  }
  fail(context, TF_CANCELLED, "Python has ended");
  completed();
}

// Results have the shapes that Python sets: the C API cannot read a list of shapes from an attribute.
void infer_shapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  tf.TF_ShapeInferenceContextSetUnknownShape(context, status);
}

void define() {
  TF_OpDefinitionBuilder* builder = tf.TF_NewOpDefinitionBuilder(kCall);
  for (const char* attribute : {"key: int", "Toperands: list(type) >= 0", "Tresults: list(type) >= 1"})
    tf.TF_OpDefinitionBuilderAddAttr(builder, attribute);
  tf.TF_OpDefinitionBuilderAddInput(builder, "operands: Toperands");
  tf.TF_OpDefinitionBuilderAddOutput(builder, "results: Tresults");
  tf.TF_OpDefinitionBuilderSetIsStateful(builder, true);
  tf.TF_OpDefinitionBuilderSetShapeInferenceFunction(builder, infer_shapes);
  const Status status;
  tf.TF_RegisterOpDefinition(builder, status);
  status.check();
}

void implement() {
  const Status status;
  TF_KernelBuilder* builder = tf.TF_NewAsyncKernelBuilder(kCall, "CPU", create_kernel, compute_call, delete_kernel);
  tf.TF_RegisterKernelBuilder(kCall, builder, status);
  status.check();
}

void define_operations(const std::vector<std::string>& libraries, const py::object& run, const py::object& describe,
                       const py::object& types) {
  if (python != nullptr) throw InvalidArgument("the operations are defined once in a process");
  resolve(libraries);
  python = new Python{run, describe, py::dict(types)};
  define();
  implement();
}

}  // namespace
}  // namespace pc::tensorflow

namespace pc {

void bind_tensorflow(py::module_& m) {
  using tensorflow::GraphCall;
  py::class_<GraphCall, std::shared_ptr<GraphCall>>(m, "TensorFlowCall", "A GraphCall of hvd/graph_call.py.")
      .def_property_readonly("inputs", &GraphCall::inputs)
      .def("output", &GraphCall::output, py::arg("index"), py::arg("shape"))
      .def("done", &GraphCall::done, py::arg("error"));
  m.def("define_tensorflow_operations", &tensorflow::define_operations, py::arg("libraries"), py::arg("run"),
        py::arg("describe"), py::arg("types"),
        "Adds PycollectiveCall to TensorFlow.\n\n"
        "Args: the paths of its libraries; run(key, call); describe(exception) -> (TF_Code, message); a dict from "
        "numbers of TF_DataType to numpy.dtype.\n\nRaises OSError if TensorFlow lacks a function or refuses.");
  tensorflow::bind_xla(m);
}

}  // namespace pc
