#include "frameworks/tensorflow/graph_call.h"

#include <pybind11/numpy.h>

#include <utility>

#include "base/checked.h"
#include "base/huge_pages.h"
#include "base/status.h"
#include "bindings/interpreter.h"

namespace pc::tensorflow {

Python* python = nullptr;

namespace {

py::dtype numpy_type(TF_DataType type) {
  const py::int_ number(static_cast<int>(type));
  if (!python->types.contains(number))
    throw WrongType("NumPy has no element type for TensorFlow's number " + std::to_string(type));
  return py::reinterpret_borrow<py::dtype>(python->types[number]);
}

// Takes the tensor over.
py::array view_of(TF_Tensor* tensor, const py::dtype& type) {
  const py::capsule owner(tensor, [](void* owned) { tf.TF_DeleteTensor(static_cast<TF_Tensor*>(owned)); });
  std::vector<py::ssize_t> shape;
  for (int i = 0; i < tf.TF_NumDims(tensor); ++i) shape.push_back(tf.TF_Dim(tensor, i));
  return py::array(type, std::move(shape), tf.TF_TensorData(tensor), owner);
}

}  // namespace

GraphCall::GraphCall(TF_OpKernelContext* context, std::function<void()> completed)
    : context_(context), completed_(std::move(completed)) {
  const Status status;
  for (int i = 0, count = tf.TF_NumInputs(context); i < count; ++i) {
    TF_Tensor* tensor = nullptr;
    tf.TF_GetInput(context, i, &tensor, status);
    status.check();
    const py::array array = view_of(tensor, numpy_type(tf.TF_TensorType(tensor)));
    py::detail::array_proxy(array.ptr())->flags &= ~py::detail::npy_api::NPY_ARRAY_WRITEABLE_;
    inputs_.append(array);
  }
}

GraphCall::~GraphCall() {
  TF_OpKernelContext* context = std::exchange(context_, nullptr);
  // Not while Python is being taken down: TensorFlow would continue with the graph, and so call Python, on this thread.
  if (context != nullptr && !python_has_ended())
    finish(context, TF_INTERNAL, "the operation was dropped before it had completed");
}

py::object GraphCall::output(int index, const std::vector<int64_t>& shape) {
  if (is_done()) throw InvalidArgument("the operation has completed");
  if (index < 0 || index >= tf.TF_NumOutputs(context_))
    throw InvalidArgument("the operation has no output " + std::to_string(index));
  const TF_DataType type = tf.TF_ExpectedOutputDataType(context_, index);
  const py::dtype element = numpy_type(type);
  const auto size = static_cast<int64_t>(element.itemsize());
  const auto bytes = static_cast<size_t>(checked_count(shape, size, "the output's shape") * size);
  const Status status;
  TF_Tensor* tensor =
      tf.TF_AllocateOutput(context_, index, type, shape.data(), static_cast<int>(shape.size()), bytes, status);
  status.check();
  prefer_huge_pages(tf.TF_TensorData(tensor), bytes);
  return view_of(tensor, element);
}

void GraphCall::done(const py::object& error) {
  TF_OpKernelContext* context = std::exchange(context_, nullptr);  // first: describing an error may release the GIL
  if (context == nullptr) throw InvalidArgument("the operation has completed before");
  TF_Code code = TF_OK;
  std::string message;
  if (!error.is_none()) {
    try {
      const auto described = python->describe(error).cast<std::pair<int, std::string>>();
      code = static_cast<TF_Code>(described.first);
      message = described.second;
    } catch (const std::exception& other) {
      code = TF_INTERNAL;
      message = other.what();
    }
  }
  finish(context, code, message);
}

void GraphCall::finish(TF_OpKernelContext* context, TF_Code code, const std::string& message) {
  const std::function<void()> completed = std::exchange(completed_, nullptr);
  inputs_ = py::list();
  const Released released;  // TensorFlow continues with the graph on this thread
  if (code != TF_OK) fail(context, code, message);
  completed();
}

void fail(TF_OpKernelContext* context, TF_Code code, const std::string& message) {
  const Status status;
  tf.TF_SetStatus(status, code, message.c_str());
  tf.TF_OpKernelContext_Failure(context, status);
}

}  // namespace pc::tensorflow
