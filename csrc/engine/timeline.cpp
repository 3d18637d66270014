#include "engine/timeline.h"

#include <utility>

namespace pc::engine {

const char* name_of(Phase phase) {
  constexpr const char* names[] = {"negotiate", "queue",         "execute", "pack",
                                   "reduce",    "between_hosts", "unpack",  "cycle"};
  return names[static_cast<size_t>(phase)];
}

void Timeline::add(Event event) {
  const std::lock_guard lock(mutex_);
  events_.push_back(std::move(event));
}

void Timeline::add(const StepTrace& steps) {
  const std::lock_guard lock(mutex_);
  steps_.insert(steps_.end(), steps.begin(), steps.end());
}

std::pair<std::vector<Event>, StepTrace> Timeline::take() {
  const std::lock_guard lock(mutex_);
  return {std::exchange(events_, {}), std::exchange(steps_, {})};
}

}  // namespace pc::engine
