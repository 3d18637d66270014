#include "frameworks/jax/collective.h"

#include <deque>
#include <mutex>
#include <shared_mutex>

#include "base/huge_pages.h"

namespace pc::jax {
namespace {

struct Registry {
  std::shared_mutex mutex;
  std::deque<Collective> collectives;  // elements stay in place
};

Registry& registry() {
  static auto* const made = new Registry;
  return *made;
}

// The memory of an array of the call, after checking that its size is what the call was planned for.
void* memory(const xla::Buffer* buffer, int64_t element, int64_t bytes, const char* what) {
  static char nothing = 0;  // XLA's empty arrays may have no memory
  if (bytes < 0) return nullptr;
  if (buffer == nullptr && bytes == 0) return &nothing;  // of a barrier
  if (const int64_t has = buffer == nullptr ? 0 : xla::bytes_of(*buffer, element); has != bytes)
    throw InvalidArgument(std::string("the custom call's ") + what + " has " + std::to_string(has) +
                          " bytes; it was planned for " + std::to_string(bytes));
  return buffer->data == nullptr ? &nothing : buffer->data;
}

}  // namespace

int64_t add(Collective collective) {
  Registry& all = registry();
  const std::unique_lock lock(all.mutex);
  all.collectives.push_back(std::move(collective));
  return static_cast<int64_t>(all.collectives.size()) - 1;
}

const Collective& collective_of(int64_t number) {
  Registry& all = registry();
  const std::shared_lock lock(all.mutex);
  if (number < 0 || static_cast<size_t>(number) >= all.collectives.size())
    throw InvalidArgument("no collective has the number " + std::to_string(number) +
                          ": was the function compiled in another process?");
  return all.collectives[static_cast<size_t>(number)];
}

xla::Error* run_collective(xla::CallFrame* frame) {
  if (xla::is_question(frame)) return nullptr;
  try {
    const Collective& made = collective_of(xla::call_number(*frame));
    const FixedCall& receives = made.receive ? *made.receive : made.call;
    const void* input = memory(xla::first_array(frame->arguments), made.element, made.call.input_bytes(), "argument");
    void* output = memory(xla::first_array(frame->results), made.element, receives.output_bytes(), "result");
    if (receives.output_bytes() > 0) prefer_huge_pages(output, static_cast<size_t>(receives.output_bytes()));
    if (made.receive) FixedCall::run_both(made.call, input, receives, output);
    else made.call.run(input, output);
    return nullptr;
  } catch (...) {
    return xla::current_error(*frame);
  }
}

}  // namespace pc::jax
