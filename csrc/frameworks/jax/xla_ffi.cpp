#include "frameworks/jax/xla_ffi.h"

#include <pybind11/pybind11.h>

#include <string_view>
#include <tuple>
#include <utility>

#include "base/status.h"
#include "bindings/bindings.h"
#include "bindings/interpreter.h"

namespace pc::xla {
namespace {

constexpr int kOldestMinor = 1;

// The version to answer with: XLA refuses a handler that is for another one than its own.  A minor version may add
// fields behind those declared here, so any does.  Releases that do not state theirs (of JAX 0.5 to 0.7) have the
// oldest.
std::pair<int, int> answer_to(const CallFrame& frame) {
  constexpr std::pair unknown{kMajor - 1, 0};
  if (frame.size < sizeof(CallFrame)) return unknown;
  if (frame.api == nullptr) return {kMajor, kOldestMinor};
  const Version& version = frame.api->version;
  const bool known = frame.api->size >= sizeof(Api) && version.size >= sizeof(Version) && version.major == kMajor;
  return known ? std::pair{version.major, version.minor} : unknown;
}

// Ctrl-C during a call on the main thread: its exception is pending there, and XLA's error would replace it.  The
// signal is raised again, for the interpreter to handle after XLA has returned.
void keep_interrupt() {
  const Acquired gil;
  if (!gil || PyErr_Occurred() == nullptr) return;
  PyErr_Clear();
  PyErr_SetInterrupt();
}

}  // namespace

bool is_question(CallFrame* frame) {
  for (Extension* extension = frame->extensions; extension != nullptr; extension = extension->next) {
    if (extension->type != kMetadataExtension) continue;
    Metadata* metadata = reinterpret_cast<MetadataExtension*>(extension)->metadata;
    std::tie(metadata->version.major, metadata->version.minor) = answer_to(*frame);
    return true;
  }
  return frame->stage != Stage::execute;
}

int64_t call_number(const CallFrame& frame) {
  const Attributes& attributes = frame.attributes;
  for (int64_t i = 0; i < attributes.count; ++i) {
    const Text& name = *attributes.names[i];
    if (std::string_view(name.data, name.length) != "call" || attributes.kinds[i] != kScalarAttribute) continue;
    const auto* scalar = static_cast<const Scalar*>(attributes.values[i]);
    if (scalar->type == kInt64) return *static_cast<const int64_t*>(scalar->value);
  }
  throw InvalidArgument("the custom call has no 64-bit attribute named call");
}

const Buffer* first_array(const Buffers& buffers) {
  for (int64_t i = 0; i < buffers.count; ++i) {
    const auto* buffer = static_cast<const Buffer*>(buffers.values[i]);
    if (buffer->type != Type::token) return buffer;
  }
  return nullptr;
}

int64_t bytes_of(const Buffer& buffer, int64_t element) {
  int64_t bytes = element;
  for (int64_t i = 0; i < buffer.rank; ++i) bytes *= buffer.dims[i];
  return bytes;
}

Error* error(const CallFrame& frame, const std::string& message, Code code) {
  ErrorCreateArgs arguments{sizeof(ErrorCreateArgs), nullptr, message.c_str(), code};
  return frame.api->create_error(&arguments);
}

Error* current_error(const CallFrame& frame) {
  try {
    throw;
  } catch (const CommunicatorFault& fault) {
    keep_interrupt();
    return error(frame, std::string(class_of(fault.fault)) + ": " + fault.what());
  } catch (const InvalidArgument& problem) {
    return error(frame, std::string("ValueError: ") + problem.what(), Code::invalid_argument);
  } catch (const std::exception& problem) {
    return error(frame, problem.what());
  }
}

}  // namespace pc::xla
