#include "frameworks/jax/python_call.h"

#include <pybind11/numpy.h>

#include <utility>

#include "base/status.h"
#include "bindings/interpreter.h"

namespace pc::jax {

Python* python = nullptr;

namespace {

// The arguments or results that are arrays.
std::vector<const xla::Buffer*> arrays_of(const xla::Buffers& buffers) {
  std::vector<const xla::Buffer*> arrays;
  for (int64_t i = 0; i < buffers.count; ++i) {
    const auto* buffer = static_cast<const xla::Buffer*>(buffers.values[i]);
    if (buffer->type != xla::Type::token) arrays.push_back(buffer);
  }
  return arrays;
}

py::array view_of(const xla::Buffer& buffer, bool writable) {
  const py::int_ number(static_cast<int>(buffer.type));
  if (!python->types.contains(number))
    throw WrongType("NumPy has no element type for XLA's number " + std::to_string(static_cast<int>(buffer.type)));
  const auto type = py::reinterpret_borrow<py::dtype>(python->types[number]);
  // With an owner the memory is not copied; the call's memory outlives its views.
  py::array view(type, std::vector<py::ssize_t>(buffer.dims, buffer.dims + buffer.rank), buffer.data, py::none());
  if (!writable) py::detail::array_proxy(view.ptr())->flags &= ~py::detail::npy_api::NPY_ARRAY_WRITEABLE_;
  return view;
}

std::string describe(const py::object& error) {
  try {
    return py::str(python->describe(error));
  } catch (const std::exception& other) {
    return other.what();
  }
}

}  // namespace

GraphCall::GraphCall(const xla::CallFrame& frame, Completion& completion) : frame_(&frame), completion_(&completion) {
  for (const xla::Buffer* buffer : arrays_of(frame.arguments)) inputs_.append(view_of(*buffer, false));
}

GraphCall::~GraphCall() {
  if (Completion* completion = std::exchange(completion_, nullptr); completion != nullptr)
    completion->set("the call was dropped before it had completed");
}

py::object GraphCall::output(int64_t index, const std::vector<int64_t>& shape) const {
  if (completion_ == nullptr) throw InvalidArgument("the call has completed");
  const auto results = arrays_of(frame_->results);
  if (index < 0 || index >= static_cast<int64_t>(results.size()))
    throw InvalidArgument("the call has no result " + std::to_string(index));
  const xla::Buffer& buffer = *results[static_cast<size_t>(index)];
  if (std::vector<int64_t>(buffer.dims, buffer.dims + buffer.rank) != shape) {
    const std::string given = py::repr(py::tuple(py::cast(shape)));
    throw InvalidArgument("result " + std::to_string(index) + " was declared with another shape than " + given);
  }
  return view_of(buffer, true);
}

void GraphCall::done(const py::object& error) {
  Completion* completion = std::exchange(completion_, nullptr);  // first: describing an error may release the GIL
  if (completion == nullptr) throw InvalidArgument("the call has completed before");
  inputs_ = py::list();
  completion->set(error.is_none() ? std::nullopt : std::optional(describe(error)));
}

xla::Error* run_python(xla::CallFrame* frame) {
  if (xla::is_question(frame)) return nullptr;
  Completion completion;
  {
    const Acquired gil;
    if (!gil) return xla::error(*frame, "Python has ended");
    try {
      const py::object call = py::cast(new GraphCall(*frame, completion), py::return_value_policy::take_ownership);
      try {
        python->starts[py::int_(xla::call_number(*frame))](call);
      } catch (py::error_already_set& problem) {
        auto& made = call.cast<GraphCall&>();
        if (made.is_done()) throw;
        made.done(problem.value());
      }
    } catch (const std::exception& problem) {
      return xla::error(*frame, problem.what());
    }
  }
  const std::optional<std::string> failure = completion.wait();
  return failure ? xla::error(*frame, *failure) : nullptr;
}

}  // namespace pc::jax
