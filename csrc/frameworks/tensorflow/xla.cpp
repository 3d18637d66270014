// Calls from functions that XLA has compiled for the CPU: two custom calls each.  The first starts the call and returns
// a ticket, the second takes the ticket, waits, and returns the results; pycollective/tensorflow/xla_order.py orders
// them.
//
// Between the two the arrays are in memory of our own: XLA may move or reuse its own as soon as a custom call returns.
//
// TensorFlow's XLA has its own registry of targets, in C++, and takes from its graphs only those of the calling
// convention API_VERSION_STATUS_RETURNING_UNIFIED.  The first call's backend_config is the key.
#include "frameworks/tensorflow/xla.h"

#include <dlfcn.h>
#include <pybind11/numpy.h>

#include <charconv>
#include <cstring>

#include "base/status.h"
#include "bindings/interpreter.h"
#include "frameworks/tensorflow/pending_calls.h"

namespace pc::tensorflow {
namespace {

constexpr const char* kGlobal = "_ZN3xla24CustomCallTargetRegistry6GlobalEv";
constexpr const char* kRegister =
    "_ZN3xla24CustomCallTargetRegistry8RegisterERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEEPvS8_";

// XlaCustomCallStatus_ of xla/service/custom_call_status_internal.h; the function that sets it is not exported.
struct CallStatus { std::optional<std::string> failure; };

struct Compiled {
  py::object signature;  // key -> ([(numpy.dtype, shape) of each operand], [of each result])
  py::object run;  // (key, CompiledCall): starts the call
};
Compiled* compiled = nullptr;  // allocated once and never freed: compiled functions may outlive the interpreter

struct Row {
  py::dtype type;
  std::vector<py::ssize_t> shape;
};

std::vector<Row> rows_of(const py::handle& rows) {
  std::vector<Row> found;
  for (const py::handle row : rows) {
    auto [type, shape] = row.cast<std::pair<py::dtype, std::vector<py::ssize_t>>>();
    found.push_back({std::move(type), std::move(shape)});
  }
  return found;
}

std::vector<Block> blocks_of(const std::vector<Row>& rows) {
  std::vector<Block> blocks;
  for (const auto& [type, shape] : rows) {
    auto bytes = static_cast<size_t>(type.itemsize());
    for (const py::ssize_t extent : shape) bytes *= static_cast<size_t>(extent);
    blocks.emplace_back(bytes);
  }
  return blocks;
}

py::list views(const std::vector<Row>& rows, const std::vector<Block>& blocks, const std::shared_ptr<Pending>& pending,
               bool writable) {
  py::list arrays;
  for (size_t i = 0; i < rows.size(); ++i) {
    const py::capsule owner(new std::shared_ptr<Pending>(pending),
                            [](void* owned) { delete static_cast<std::shared_ptr<Pending>*>(owned); });
    py::array array(rows[i].type, rows[i].shape, blocks[i].data(), owner);
    if (!writable) py::detail::array_proxy(array.ptr())->flags &= ~py::detail::npy_api::NPY_ARRAY_WRITEABLE_;
    arrays.append(array);
  }
  return arrays;
}

// A GraphCall of pycollective/hvd/graph_call.py.  All members need the GIL.
class CompiledCall {
 public:
  CompiledCall(std::shared_ptr<Pending> pending, py::list inputs, py::list outputs)
      : pending_(std::move(pending)), inputs_(std::move(inputs)), outputs_(std::move(outputs)) {}
  ~CompiledCall() {
    if (pending_ != nullptr) pending_->completion.set("the operation was dropped before it had completed");
  }
  CompiledCall(const CompiledCall&) = delete;

  bool is_done() const { return pending_ == nullptr; }
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
    if (const auto pending = std::exchange(pending_, nullptr); pending != nullptr)
      pending->completion.set(std::move(failure));
  }

 private:
  static std::string described(const py::object& error) {
    return py::str("{}: {}").format(py::type::of(error).attr("__name__"), error).cast<std::string>();
  }
  std::shared_ptr<Pending> pending_;  // null once the operation has completed
  py::list inputs_, outputs_;
};

}  // namespace
}  // namespace pc::tensorflow

template <> inline constexpr bool pc::is_bound<pc::tensorflow::CompiledCall> = true;

namespace pc::tensorflow {
namespace {

// The operands in `in` are followed by the ticket of an earlier call, zeros if there is none.
Ticket start(int64_t key, const void** in) {
  const auto signature = compiled->signature(key).cast<py::tuple>();
  const std::vector<Row> operands = rows_of(signature[0]), results = rows_of(signature[1]);
  const auto pending = std::make_shared<Pending>();
  pending->inputs = blocks_of(operands);
  pending->outputs = blocks_of(results);
  {
    const Released released;
    for (const Block& block : pending->inputs) std::memcpy(block.data(), *in++, block.bytes());
  }
  const auto call = std::make_shared<CompiledCall>(pending, views(operands, pending->inputs, pending, false),
                                                   views(results, pending->outputs, pending, true));
  const Ticket ticket = pending_calls().add(static_cast<const Ticket*>(*in)->execution, pending);
  try {
    compiled->run(key, call);
  } catch (py::error_already_set& error) {  // reported where the results are fetched
    if (call->is_done()) error.discard_as_unraisable("an operation of a function compiled by XLA");
    else call->done(error.value());
  }
  return ticket;
}

void start_target(void* out, const void** in, const char* config, size_t bytes, CallStatus* status) {
  int64_t key = 0;
  std::from_chars(config, config + bytes, key);
  try {
    const Acquired gil;
    if (!gil) throw SystemFailure("Python has ended");
    *static_cast<Ticket*>(out) = start(key, in);
  } catch (const std::exception& error) {  // the call has not been made
    status->failure = error.what();
  }
}

void finish_target(void* out, const void** in, const char*, size_t, CallStatus* status) {
  const Ticket ticket = *static_cast<const Ticket*>(*in);
  const auto pending = pending_calls().take(ticket);
  status->failure =
      pending != nullptr ? pending->completion.wait() : "another operation of this execution has failed before";
  if (status->failure) return pending_calls().drop(ticket.execution);
  auto* result = static_cast<void**>(out);
  for (const Block& block : pending->outputs) std::memcpy(*result++, block.data(), block.bytes());
  *static_cast<uint8_t*>(*result) = 0;
}

void define_xla_targets(const std::string& library, const std::string& start, const std::string& finish,
                        const py::object& signature, const py::object& run) {
  if (compiled != nullptr) throw InvalidArgument("the targets are defined once in a process");
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
  add(global(), start, reinterpret_cast<void*>(&start_target), "Host");
  add(global(), finish, reinterpret_cast<void*>(&finish_target), "Host");
}

}  // namespace

void bind_xla(py::module_& m) {
  py::class_<CompiledCall, std::shared_ptr<CompiledCall>>(m, "TensorFlowCompiledCall",
                                                          "A GraphCall of hvd/graph_call.py.")
      .def_property_readonly("inputs", &CompiledCall::inputs)
      .def("output", &CompiledCall::output, py::arg("index"), py::arg("shape"))
      .def("done", &CompiledCall::done, py::arg("error"));
  m.def("define_tensorflow_xla_targets", &define_xla_targets, py::arg("library"), py::arg("start"), py::arg("finish"),
        py::arg("signature"), py::arg("run"),
        "Adds two targets for custom calls to TensorFlow's XLA on the CPU. `start`: its backend_config is a key; takes "
        "the operands, and a ticket or zeros; returns a ticket. `finish`: takes the ticket; returns the results, and a "
        "uint8 for others to depend on. A ticket is two int64.\n\n"
        "Args: the path of the library; the targets' names; signature(key) -> (operands, results), each a list of "
        "(numpy.dtype, shape); run(key, call).\n\nRaises OSError if TensorFlow lacks a function.");
}

}  // namespace pc::tensorflow
