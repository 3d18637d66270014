// The operations that TensorFlow's graphs contain.
//
// A call has any number of inputs and results and a key, by which Python finds what to start.  There are two: the
// stateful one, which tf.function runs in program order, and one for calls that may overlap.  TensorFlow's optimizers
// may merge operations that are not stateful, and run them while they optimize; so the second takes a token, the result
// of a stateful operation of its own.
#include <pybind11/stl.h>

#include "base/status.h"
#include "bindings/interpreter.h"
#include "frameworks/tensorflow/graph_call.h"
#include "frameworks/tensorflow/xla.h"

namespace pc::tensorflow {
namespace {

constexpr const char* kCall = "PycollectiveCall";
constexpr const char* kOverlappingCall = "PycollectiveOverlappingCall";
constexpr const char* kToken = "PycollectiveToken";

struct Kernel {
  int64_t key = 0;
  int tokens = 0;  // inputs after the operands
};

void* create(TF_OpKernelConstruction* construction, int tokens) {
  auto* kernel = new Kernel{0, tokens};
  const Status status;
  tf.TF_OpKernelConstruction_GetAttrInt64(construction, "key", &kernel->key, status);
  if (tf.TF_GetCode(status) != TF_OK) tf.TF_OpKernelConstruction_Failure(construction, status);
  return kernel;
}

void* create_call(TF_OpKernelConstruction* construction) { return create(construction, 0); }
void* create_overlapping_call(TF_OpKernelConstruction* construction) { return create(construction, 1); }
void delete_kernel(void* kernel) { delete static_cast<Kernel*>(kernel); }

// Returns once the call has been started.
void start(const Kernel& kernel, TF_OpKernelContext* context, const std::function<void()>& completed) {
  std::shared_ptr<GraphCall> call;
  try {
    call = std::make_shared<GraphCall>(context, completed, tf.TF_NumInputs(context) - kernel.tokens);
  } catch (const std::exception& error) {  // nobody else has `completed`
    fail(context, TF_INTERNAL, error.what());
    const Released released;
    return completed();
  }
  try {
    python->run(kernel.key, call);
  } catch (py::error_already_set& error) {
    if (call->is_done()) error.discard_as_unraisable("an operation of TensorFlow's graph");
    else call->done(error.value());
  }
}

void compute_call(void* kernel, TF_OpKernelContext* context, void* done) {
  const std::function<void()> completed = *static_cast<std::function<void()>*>(done);
  {
    const Acquired gil;
    if (gil) return start(*static_cast<Kernel*>(kernel), context, completed);
  }
  fail(context, TF_CANCELLED, "Python has ended");
  completed();
}

void compute_token(void*, TF_OpKernelContext* context) {
  const Status status;
  TF_Tensor* token = tf.TF_AllocateOutput(context, 0, TF_INT64, nullptr, 0, sizeof(int64_t), status);
  if (tf.TF_GetCode(status) != TF_OK) return tf.TF_OpKernelContext_Failure(context, status);
  *static_cast<int64_t*>(tf.TF_TensorData(token)) = 0;
  tf.TF_DeleteTensor(token);
}

// Results have the shapes that Python sets: the C API cannot read a list of shapes from an attribute.
void infer_shapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  tf.TF_ShapeInferenceContextSetUnknownShape(context, status);
}

void define(const char* name, bool stateful, const std::vector<const char*>& attributes,
            const std::vector<const char*>& inputs, const char* output) {
  TF_OpDefinitionBuilder* builder = tf.TF_NewOpDefinitionBuilder(name);
  for (const char* attribute : attributes) tf.TF_OpDefinitionBuilderAddAttr(builder, attribute);
  for (const char* input : inputs) tf.TF_OpDefinitionBuilderAddInput(builder, input);
  tf.TF_OpDefinitionBuilderAddOutput(builder, output);
  if (stateful) tf.TF_OpDefinitionBuilderSetIsStateful(builder, true);  // 2.21 takes false for true
  tf.TF_OpDefinitionBuilderSetShapeInferenceFunction(builder, infer_shapes);
  const Status status;
  tf.TF_RegisterOpDefinition(builder, status);
  status.check();
}

void implement(const char* name, TF_KernelBuilder* builder) {
  const Status status;
  tf.TF_RegisterKernelBuilder(name, builder, status);
  status.check();
}

void define_all() {
  const std::vector<const char*> attributes = {"key: int", "Toperands: list(type) >= 0", "Tresults: list(type) >= 1"};
  define(kCall, true, attributes, {"operands: Toperands"}, "results: Tresults");
  define(kOverlappingCall, false, attributes, {"operands: Toperands", "token: int64"}, "results: Tresults");
  define(kToken, true, {}, {}, "token: int64");
  implement(kCall, tf.TF_NewAsyncKernelBuilder(kCall, "CPU", create_call, compute_call, delete_kernel));
  implement(kOverlappingCall,
            tf.TF_NewAsyncKernelBuilder(kOverlappingCall, "CPU", create_overlapping_call, compute_call, delete_kernel));
  implement(kToken, tf.TF_NewKernelBuilder(kToken, "CPU", nullptr, compute_token, nullptr));
}

void define_operations(const std::vector<std::string>& libraries, const py::object& run, const py::object& describe,
                       const py::object& types) {
  if (python != nullptr) throw InvalidArgument("the operations are defined once in a process");
  resolve(libraries);
  python = new Python{run, describe, py::dict(types)};
  define_all();
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
        "Adds PycollectiveCall, PycollectiveOverlappingCall and PycollectiveToken to TensorFlow.\n\n"
        "Args: the paths of its libraries; run(key, call); describe(exception) -> (TF_Code, message); a dict from "
        "numbers of TF_DataType to numpy.dtype.\n\nRaises OSError if TensorFlow lacks a function or refuses.");
  tensorflow::bind_xla(m);
}

}  // namespace pc
