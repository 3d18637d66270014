// What was made before a fork() belongs to the parent: a child that used it would speak in the parent's name.
#pragma once

#include <atomic>
#include <cstdint>

namespace pc {

// Another number in a child than in the process that it was forked from.
uint32_t fork_generation();

// The one T of this process, made at first use and never destroyed. A child's is its own: the parent's threads are
// not there to serve the parent's, and nobody may ever unlock its mutexes.
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
  delete made;  // another thread was quicker
  return current.load(std::memory_order_acquire)->value;
}

}  // namespace pc
