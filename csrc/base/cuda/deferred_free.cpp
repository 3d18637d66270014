#include "base/cuda/deferred_free.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

namespace pc::cuda {
namespace {

constexpr size_t kMuch = size_t{256} << 20;  // bytes

struct Deferred {
  int device;
  size_t bytes;
  std::function<void()> free;
};

struct State {
  std::mutex mutex;
  std::vector<const WaitsForPeers*> waiting;
  std::set<int> lost;
  std::vector<Deferred> deferred;
};

State& state() {
  static auto* state = new State;  // used by destructors of other statics
  return *state;
}

bool concerns(int device, int other) { return device == kAnyDevice || other == kAnyDevice || device == other; }

bool idle(const State& s, int device) {
  return std::none_of(s.lost.begin(), s.lost.end(), [&](int lost) { return concerns(device, lost); }) &&
         std::all_of(s.waiting.begin(), s.waiting.end(),
                     [&](const WaitsForPeers* owner) { return !concerns(device, owner->device()) || owner->idle(); });
}

}  // namespace

void add(const WaitsForPeers& owner) {
  const std::lock_guard lock(state().mutex);
  state().waiting.push_back(&owner);
}

void remove(const WaitsForPeers& owner) {
  const std::lock_guard lock(state().mutex);
  std::erase(state().waiting, &owner);
}

void give_up_on(int device) {
  const std::lock_guard lock(state().mutex);
  state().lost.insert(device);
}

bool idle(int device) {
  const std::lock_guard lock(state().mutex);
  return idle(state(), device);
}

void free_when_idle(int device, size_t bytes, std::function<void()> free) noexcept {
  {
    const std::lock_guard lock(state().mutex);
    if (!idle(state(), device)) {
      state().deferred.push_back({device, bytes, std::move(free)});
      return;
    }
  }
  free();
}

void free_deferred(int device) {
  State& s = state();
  std::vector<Deferred> ready;
  for (;;) {
    {
      const std::lock_guard lock(s.mutex);
      const auto kept = std::stable_partition(s.deferred.begin(), s.deferred.end(), [&](const Deferred& d) {
        return !concerns(device, d.device) || !idle(s, d.device);
      });
      std::move(kept, s.deferred.end(), std::back_inserter(ready));
      s.deferred.erase(kept, s.deferred.end());
      size_t held = 0;
      for (const Deferred& d : s.deferred) held += concerns(device, d.device) ? d.bytes : 0;
      if (held <= kMuch || !s.lost.empty()) break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  for (const Deferred& d : ready) d.free();
}

}  // namespace pc::cuda
