// What an engine did and when: events that Python writes into a trace.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "executor/trace.h"

namespace pc::engine {

// negotiate: from this rank's submission to the last one's.  queue: from there to the batch.  between_hosts: reduce,
// where ranks are on several.  cycle: a batch begins.
enum class Phase : uint8_t { negotiate, queue, execute, pack, reduce, between_hosts, unpack, cycle };
const char* name_of(Phase phase);

struct Event {
  Phase phase;
  const char* kind;  // of the operation, for "negotiate" and "execute"; else null
  std::string name;  // of the operation; empty for a batch
  int64_t begin, end;  // nanoseconds of the steady clock
};

class Timeline {
 public:
  // Records the time from here to end(), if tracing is on.
  class Span {
   public:
    Span(Timeline* timeline, Phase phase) : timeline_(timeline), phase_(phase), begin_(timeline ? now() : 0) {}
    void end() {
      if (timeline_ != nullptr) timeline_->add({phase_, nullptr, {}, begin_, now()});
      timeline_ = nullptr;
    }

   private:
    Timeline* timeline_;
    Phase phase_;
    int64_t begin_;
  };

  static_assert(std::is_same_v<std::chrono::steady_clock::period, std::nano>);
  static int64_t now() { return std::chrono::steady_clock::now().time_since_epoch().count(); }
  bool on() const { return on_.load(std::memory_order_relaxed); }
  void start(bool on) { on_.store(on, std::memory_order_relaxed); }
  Span span(Phase phase) { return {on() ? this : nullptr, phase}; }
  void add(Event event);
  void add(const StepTrace& steps);
  std::pair<std::vector<Event>, StepTrace> take();  // since the last call

 private:
  std::atomic<bool> on_{false};
  std::mutex mutex_;
  std::vector<Event> events_;
  StepTrace steps_;
};

}  // namespace pc::engine
