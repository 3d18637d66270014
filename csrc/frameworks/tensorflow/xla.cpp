// Calls from functions that XLA has compiled for the CPU: a custom call, which blocks until it has completed.
//
// TensorFlow's XLA has its own registry of targets, in C++, and takes from its graphs only those of the calling
// convention API_VERSION_STATUS_RETURNING_UNIFIED.  The operation's backend_config is the key.
#include "frameworks/tensorflow/xla.h"

#include <dlfcn.h>
#include <pybind11/numpy.h>

#include <charconv>
#include <condition_variable>
#include <mutex>

#include "base/status.h"
#include "bindings/interpreter.h"
#include "frameworks/tensorflow/c_api.h"

namespace pc::tensorflow {
namespace {

constexpr const char* kGlobal = "_ZN3xla24CustomCallTargetRegistry6GlobalEv";
constexpr const char* kRegister =
    "_ZN3xla24CustomCallTargetRegistry8RegisterERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEEPvS8_";

// XlaCustomCallStatus_ of xla/service/custom_call_status_internal.h; the function that sets it is not exported.
struct CallStatus { std::optional<std::string> failure; };

struct Compiled {
  py::object signature;  // key -> ([(numpy.dtype, shape) of each operand], [of each result])
  py::object run;        // (key, CompiledCall): starts the call
};
Compiled* compiled = nullptr;  // allocated once and never freed: compiled functions may outlive the interpreter

// Views of XLA's memory, which is there until the custom call returns.
py::list views(const py::handle& types, const void* const* memory, bool writable) {
  py::list arrays;
  for (const py::handle row : types) {
    const auto [type, shape] = row.cast<std::pair<py::dtype, std::vector<py::ssize_t>>>();
    const py::capsule borrowed(memory, [](void*) {});
    py::array array(type, shape, *memory++, borrowed);
    if (!writable) py::detail::array_proxy(array.ptr())->flags &= ~py::detail::npy_api::NPY_ARRAY_WRITEABLE_;
    arrays.append(array);
  }
  return arrays;
}

// What the thread of XLA waits for, without the GIL: Python would end a thread that waits in its code when it ends.
class Completion {
 public:
  void set(std::optional<std::string> failure) {
    const std::lock_guard lock(mutex_);
    failure_ = std::move(failure);
    complete_ = true;
    changed_.notify_all();
  }
  std::optional<std::string> wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return complete_; });
    return failure_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool complete_ = false;
  std::optional<std::string> failure_;
};

// A GraphCall of pycollective/hvd/graph_call.py.  All members need the GIL.
class CompiledCall {
 public:
  CompiledCall(std::shared_ptr<Completion> completion, py::list inputs, py::list outputs)
      : completion_(std::move(completion)), inputs_(std::move(inputs)), outputs_(std::move(outputs)) {}
  ~CompiledCall() {
    if (completion_ != nullptr) completion_->set("the operation was dropped before it had completed");
  }
  CompiledCall(const CompiledCall&) = delete;

  bool is_done() const { return completion_ == nullptr; }
  py::object inputs() const { return inputs_; }
  py::object output(size_t index, const py::object& shape) const {
    if (is_done()) throw InvalidArgument("the operation has completed");
    if (index >= outputs_.size()) throw InvalidArgument("the operation has no output " + std::to_string(index));
    py::object found = outputs_[index];
    if (!py::tuple(shape).equal(found.attr("shape")))
      throw InvalidArgument("a result of shape " + py::str(py::tuple(shape)).cast<std::string>() +
                            ", where the compiled function has " + py::str(found.attr("shape")).cast<std::string>());
    return found;
  }
  void done(const py::object& error) {
    if (is_done()) throw InvalidArgument("the operation has completed before");
    std::optional<std::string> failure;
    if (!error.is_none()) failure = described(error);
    inputs_ = outputs_ = py::list();
    if (const auto completion = std::exchange(completion_, nullptr); completion != nullptr)
      completion->set(std::move(failure));
  }

 private:
  static std::string described(const py::object& error) {
    return py::str("{}: {}").format(py::type::of(error).attr("__name__"), error).cast<std::string>();
  }
  std::shared_ptr<Completion> completion_;  // null once the operation has completed
  py::list inputs_, outputs_;
};

}  // namespace
}  // namespace pc::tensorflow

template <> inline constexpr bool pc::is_bound<pc::tensorflow::CompiledCall> = true;

namespace pc::tensorflow {
namespace {

void start(int64_t key, void* out, const void** in, const std::shared_ptr<Completion>& completion) {
  const auto signature = compiled->signature(key).cast<py::tuple>();
  const auto call = std::make_shared<CompiledCall>(completion, views(signature[0], in, false),
                                                   views(signature[1], static_cast<void* const*>(out), true));
  try {
    compiled->run(key, call);
  } catch (py::error_already_set& error) {
    if (call->is_done()) error.discard_as_unraisable("an operation of a function compiled by XLA");
    else call->done(error.value());
  }
}

void target(void* out, const void** in, const char* config, size_t bytes, CallStatus* status) {
  int64_t key = 0;
  std::from_chars(config, config + bytes, key);
  const auto completion = std::make_shared<Completion>();
  try {
    const Acquired gil;
    if (gil) start(key, out, in, completion);
    else completion->set("Python has ended");
  } catch (const std::exception& error) {  // the call has not been made
    completion->set(error.what());
  }
  status->failure = completion->wait();
}

void define_xla_target(const std::string& library, const std::string& name, const py::object& signature,
                       const py::object& run) {
  if (compiled != nullptr) throw InvalidArgument("the target is defined once in a process");
  void* handle = dlopen(library.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  const auto find = [handle](const char* symbol) {
    void* found = dlsym(handle == nullptr ? RTLD_DEFAULT : handle, symbol);
    if (found == nullptr) throw SystemFailure(std::string("TensorFlow's libraries have no function ") + symbol);
    return found;
  };
  const auto global = reinterpret_cast<void* (*)()>(find(kGlobal));
  using Register = void (*)(void* registry, const std::string& name, void* address, const std::string& platform);
  const auto add = reinterpret_cast<Register>(find(kRegister));
  compiled = new Compiled{signature, run};
  add(global(), name, reinterpret_cast<void*>(&target), "Host");
}

}  // namespace

void bind_xla(py::module_& m) {
  py::class_<CompiledCall, std::shared_ptr<CompiledCall>>(m, "TensorFlowCompiledCall",
                                                          "A GraphCall of hvd/graph_call.py.")
      .def_property_readonly("inputs", &CompiledCall::inputs)
      .def("output", &CompiledCall::output, py::arg("index"), py::arg("shape"))
      .def("done", &CompiledCall::done, py::arg("error"));
  m.def("define_tensorflow_xla_target", &define_xla_target, py::arg("library"), py::arg("name"), py::arg("signature"),
        py::arg("run"),
        "Adds a target for custom calls, whose backend_config is a key, to TensorFlow's XLA on the CPU.\n\n"
        "Args: the path of the library; the target's name; signature(key) -> (operands, results), each a list of "
        "(numpy.dtype, shape); run(key, call).\n\nRaises OSError if TensorFlow lacks a function.");
}

}  // namespace pc::tensorflow
