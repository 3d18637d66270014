// Objects created before a fork() belong to the parent: a child that used them would act as the parent's rank.
#pragma once

#include <atomic>
#include <cstdint>

namespace pc {

// Differs between a process and its forked children.
uint32_t fork_generation();

// The singleton T of this process, created at first use and never destroyed.  A child gets its own: it has none of the
// parent's threads, and mutexes held at the fork may never be unlocked.
template <class T>
T& of_this_process() {
  struct Made {
    uint32_t generation = fork_generation();
    T value;
  };
  static std::atomic<Made*> current{nullptr};
  Made* found = current.load(std::memory_order_acquire);
  if (found != nullptr && found->generation == fork_generation()) return found->value;
  auto* made = new Made;
  if (current.compare_exchange_strong(found, made)) return made->value;
  delete made;  // another thread was faster
  return current.load(std::memory_order_acquire)->value;
}

}  // namespace pc
