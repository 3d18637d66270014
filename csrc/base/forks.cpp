#include "base/forks.h"

#include <pthread.h>

#include <atomic>

namespace pc {
namespace {

std::atomic<uint32_t> generation{0};

}  // namespace

uint32_t fork_generation() {
  static const int registered =
      pthread_atfork(nullptr, nullptr, [] { generation.fetch_add(1, std::memory_order_relaxed); });
  static_cast<void>(registered);
  return generation.load(std::memory_order_relaxed);
}

}  // namespace pc
