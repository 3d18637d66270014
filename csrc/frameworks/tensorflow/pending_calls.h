// The calls that a function compiled by XLA has started and whose results it has not fetched.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/huge_pages.h"
#include "frameworks/completion.h"

namespace pc::tensorflow {

// Uninitialized memory.
class Block {
 public:
  explicit Block(size_t bytes) : bytes_(bytes), data_(::operator new(bytes + 1, kAlignment)) {
    prefer_huge_pages(data(), bytes);
  }
  void* data() const { return data_.get(); }
  size_t bytes() const { return bytes_; }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Free {
    void operator()(void* data) const { ::operator delete(data, kAlignment); }
  };
  size_t bytes_;
  std::unique_ptr<void, Free> data_;
};

// A call that has been started and whose results have not been fetched.
struct Pending {
  Completion completion;
  std::vector<Block> inputs, outputs;
};

// What the first custom call returns.
struct Ticket {
  int64_t execution;  // of the compiled function: the same for all its calls
  int64_t call;
};

class PendingCalls {
 public:
  Ticket add(int64_t execution, std::shared_ptr<Pending> pending) {
    const std::lock_guard lock(mutex_);
    const Ticket ticket{execution != 0 ? execution : ++last_, ++last_};
    calls_.emplace(ticket.call, std::pair(ticket.execution, std::move(pending)));
    return ticket;
  }
  // Null if the execution has failed.
  std::shared_ptr<Pending> take(const Ticket& ticket) {
    const std::lock_guard lock(mutex_);
    const auto found = calls_.extract(ticket.call);
    return found.empty() ? nullptr : found.mapped().second;
  }
  // Forgets the other calls of an execution that has failed: XLA will not fetch their results.
  void drop(int64_t execution) {
    const std::lock_guard lock(mutex_);
    std::erase_if(calls_, [execution](const auto& call) { return call.second.first == execution; });
  }

 private:
  std::mutex mutex_;
  int64_t last_ = 0;
  std::unordered_map<int64_t, std::pair<int64_t, std::shared_ptr<Pending>>> calls_;
};

inline PendingCalls& pending_calls() {
  static auto* const made = new PendingCalls;
  return *made;
}

}  // namespace pc::tensorflow
