// Calls from functions that XLA has compiled for the CPU: a custom call, which blocks until it has completed.
//
// TensorFlow's XLA has its own registry of targets, in C++, and takes from its graphs only those of the calling
// convention API_VERSION_STATUS_RETURNING_UNIFIED.  The operation's backend_config is the key.
#include "frameworks/tensorflow/xla.h"

#include <dlfcn.h>
#include <pybind11/numpy.h>

#include <charconv>

#include "base/status.h"
#include "bindings/interpreter.h"
#include "frameworks/tensorflow/c_api.h"

namespace pc::tensorflow {
namespace {

constexpr const char* kGlobal = "_ZN3xla24CustomCallTargetRegistry6GlobalEv";
constexpr const char* kRegister =
    "_ZN3xla24CustomCallTargetRegistry8RegisterERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEEPvS8_";

// XlaCustomCallStatus_ of xla/service/custom_call_status_internal.h; the function that sets it is not exported.
struct CallStatus {
  std::optional<std::string> failure;
};

struct Compiled {
  py::function signature;  // key -> ([(numpy.dtype, shape) of each operand], [of each result])
  py::function run;        // (key, operands, results): returns once the results have been written
};
Compiled* compiled = nullptr;

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

void run(void* out, const void** in, std::string_view config) {
  int64_t key = 0;
  std::from_chars(config.data(), config.data() + config.size(), key);
  const auto signature = compiled->signature(key).cast<py::tuple>();
  compiled->run(key, views(signature[0], in, false), views(signature[1], static_cast<void* const*>(out), true));
}

void target(void* out, const void** in, const char* config, size_t bytes, CallStatus* status) {
  const Acquired gil;
  if (!gil) {
    status->failure = "Python has ended";
    return;
  }
  try {
    run(out, in, {config, bytes});
  } catch (const py::error_already_set& error) {
    status->failure = py::str(error.value()).cast<std::string>();
  } catch (const std::exception& error) {
    status->failure = error.what();
  }
}

}  // namespace

void define_xla_target(const std::string& library, const std::string& name, const py::function& signature,
                       const py::function& run) {
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

}  // namespace pc::tensorflow
