// The state of the emulated runtime: streams, events, graphs, allocations.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cuda.h"
#include "cuda_runtime.h"

namespace pc_emulated {

// A thread that executes work in order; while it is captured, work is added to a graph instead.
struct Stream {
  Stream() : worker([this] { work(); }) {}
  ~Stream() {
    {
      const std::lock_guard lock(mutex);
      ends = true;
    }
    changed.notify_all();
    worker.join();
  }
  void add(std::function<void()> todo) {
    const std::lock_guard lock(mutex);
    queue.push_back(std::move(todo));
    ++added;
    changed.notify_all();
  }
  void drain() {
    std::unique_lock lock(mutex);
    const uint64_t until = added;
    changed.wait(lock, [&] { return done >= until; });
  }
  void work() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return ends || !queue.empty(); });
      if (queue.empty()) return;
      const auto next = std::move(queue.front());
      queue.pop_front();
      lock.unlock();
      next();
      lock.lock();
      ++done;
      changed.notify_all();
    }
  }
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> queue;
  uint64_t added = 0, done = 0;
  int priority = 0;
  bool ends = false;
  Graph* capture = nullptr;
  const unsigned long long id = ++ids;
  static inline std::atomic<unsigned long long> ids{0};
  std::thread worker;  // last: uses all of the above
};

// A node creates its work when the graph is launched: an external event is recorded, or waited for, at that time.
struct Node {
  std::function<std::function<void()>()> make;
  std::vector<Node*> after;  // of a leaf
};

struct Graph {
  void add(std::function<std::function<void()>()> make) {
    nodes.push_back(std::make_shared<Node>(Node{std::move(make), {}}));
  }
  std::vector<std::shared_ptr<Node>> nodes;  // of the captured stream, each after the one before
  std::vector<std::shared_ptr<Node>> leaves;  // added to the graph itself
  const unsigned long long id = ++ids;  // of the capture
  static inline std::atomic<unsigned long long> ids{0};
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
};

// Shared by work in streams and the handle: an event may be destroyed while work that waits for it is queued.
struct EventState {
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t recorded = 0, happened = 0;
  std::chrono::steady_clock::time_point at;
  void wait(uint64_t until) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return happened >= until; });
  }
};

struct Event { std::shared_ptr<EventState> state = std::make_shared<EventState>(); };

struct Allocation {
  size_t bytes;
  int fd;
  int device;
  bool mapped;  // a peer's
};

struct State {
  std::mutex mutex;
  std::map<char*, Allocation> allocations, host;
  std::map<CUmemGenericAllocationHandle, Allocation> handles;
  CUmemGenericAllocationHandle next_handle = 1;
  std::mutex streams_mutex;
  std::vector<std::shared_ptr<Stream>> streams;
  Stream legacy;
};

inline State& state() {
  static auto* state = new State;  // threads may outlive statics
  return *state;
}

inline int number(const char* name, int fallback) {
  const char* text = std::getenv(name);
  return text == nullptr || *text == '\0' ? fallback : std::atoi(text);
}

inline bool flag(const char* name) { return number(name, 0) != 0; }

inline thread_local int device = 0;

inline char* map_shared(int fd, size_t bytes) {
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return at == MAP_FAILED ? nullptr : static_cast<char*>(at);
}

inline int make_shared(size_t bytes) {
  const int fd = memfd_create("emulated-device-memory", MFD_CLOEXEC);
  if (fd >= 0 && ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    close(fd);
    return -1;
  }
  return fd;
}

// The allocation that contains an address, of the device's memory or the host's.
inline std::map<char*, Allocation>::iterator find(std::map<char*, Allocation>& all, const void* pointer) {
  auto next = all.upper_bound(static_cast<char*>(const_cast<void*>(pointer)));
  if (next == all.begin()) return all.end();
  --next;
  return static_cast<const char*>(pointer) < next->first + next->second.bytes ? next : all.end();
}

// Memory is not freed under work in flight: cudaFree waits; other threads may use streams meanwhile.
inline void drain_all() {
  const auto streams = [] {
    const std::lock_guard lock(state().streams_mutex);
    return state().streams;
  }();
  state().legacy.drain();
  for (const auto& stream : streams) stream->drain();
}

inline Stream* real(Stream* stream) { return stream == nullptr ? &state().legacy : stream; }

}  // namespace pc_emulated
