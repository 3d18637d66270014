#include "frameworks/jax/collective.h"

#include <array>
#include <atomic>
#include <deque>
#include <mutex>
#include <utility>

#include "base/huge_pages.h"

namespace pc::jax {
namespace {

// Found without a lock: a thread of XLA looks one up in every call.
class Registry {
 public:
  int64_t add(PlannedCollective collective) {
    const std::lock_guard lock(mutex_);
    const size_t number = collectives_.size();
    const auto [block, index] = place(number);
    if (block >= kBlocks) throw InvalidArgument("too many collectives are planned in one process");
    const PlannedCollective* const stored = &collectives_.emplace_back(std::move(collective));
    if (index == 0) blocks_[block].store(new Block{}, std::memory_order_release);
    (*blocks_[block].load(std::memory_order_relaxed))[index].store(stored, std::memory_order_release);
    return static_cast<int64_t>(number);
  }

  // Null: there is none.
  const PlannedCollective* find(int64_t number) const {
    if (number < 0) return nullptr;
    const auto [block, index] = place(static_cast<size_t>(number));
    const Block* const found = block < kBlocks ? blocks_[block].load(std::memory_order_acquire) : nullptr;
    return found == nullptr ? nullptr : (*found)[index].load(std::memory_order_acquire);
  }

 private:
  static constexpr size_t kBlock = 1024, kBlocks = 4096;
  using Block = std::array<std::atomic<const PlannedCollective*>, kBlock>;
  static std::pair<size_t, size_t> place(size_t number) { return {number / kBlock, number % kBlock}; }

  std::mutex mutex_;
  std::deque<PlannedCollective> collectives_;  // elements stay in place
  std::array<std::atomic<Block*>, kBlocks> blocks_{};
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

int64_t add(PlannedCollective collective) { return registry().add(std::move(collective)); }

const PlannedCollective& collective_of(int64_t number) {
  const PlannedCollective* const found = registry().find(number);
  if (found == nullptr)
    throw InvalidArgument("no collective has the number " + std::to_string(number) +
                          ": was the function compiled in another process?");
  return *found;
}

xla::Error* run_collective(xla::CallFrame* frame) {
  if (xla::is_question(frame)) return nullptr;
  try {
    const PlannedCollective& made = collective_of(xla::call_number(*frame));
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
