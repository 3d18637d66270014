// Ranks that have not submitted what others wait for: reported after a while, on request, and eventually fatal.
#include <cstdio>

#include "engine/engine.h"

namespace pc::engine {
namespace {

constexpr auto kPatience = std::chrono::seconds(1);  // for the board's lock
constexpr double kRoundTrip = 0.25;  // seconds that a round of messages may take

}  // namespace

// One line for each, and one for ranks that have been silent for `seconds`.
std::string Engine::list(const std::vector<Stall>& stalls, double seconds) const {
  return engine::list(stalls, [this](int32_t rank) { return team_->number(rank); }) + carrier_->silence(seconds);
}

void Engine::refuse(const std::string& name, const std::string& why) {
  carrier_->refuse(name, why, Clock::now() + kPatience);
}

std::string Engine::report() {
  if (board_ == nullptr || board_->await_lock(Clock::now() + kPatience))
    return list(carrier_->stalls(0, true, Clock::now() + kPatience), kRoundTrip);
  const int32_t holder = board_->holder();
  return "  " + (holder < 0 ? "a rank" : team_->label(holder)) + " holds the lock of the engine's board\n";
}

// Standard error rather than Python's logging: the interpreter may be what is blocked.
void Engine::inspect() {
  try {
    give_report();
    watch_stalls();
  } catch (const CommunicatorFault& fault) {
    if (!start_driving(false)) return;  // a thread that drives may be writing to the arrays; it meets the fault itself
    fail(fault);
    stop_driving();
  }
}

void Engine::give_report() {
  const uint32_t wanted = reports_wanted.load();
  if (wanted == reports_given_) return;
  reports_given_ = wanted;
  const std::string text = report();
  std::fprintf(stderr, "%s: %s\n%s", label().c_str(),
               text.empty() ? "no operation waits for a rank" : "operations that wait:", text.c_str());
}

void Engine::watch_stalls() {
  if (team_->poisoned()) return;
  const auto now = Clock::now();
  const auto since = std::chrono::duration<double>(now - inspected_).count();
  if (stall_.warn_seconds > 0 && since >= stall_.warn_seconds) {
    const auto stalls = carrier_->stalls(stall_.warn_seconds, false, now + kPatience);
    const std::string text = list(stalls, stall_.warn_seconds);
    if (!text.empty()) {
      inspected_ = now;
      std::fprintf(stderr, "%s: some ranks have not submitted what others wait for:\n%s", label().c_str(),
                   text.c_str());
    }
  }
  if (stall_.shutdown_seconds > 0) {
    const auto stalls = carrier_->stalls(stall_.shutdown_seconds, true, now + kPatience);
    if (stalls.empty()) return;
    const std::string text = "operations waited for more than " + number_text(stall_.shutdown_seconds) +
                             " s (HOROVOD_STALL_SHUTDOWN_TIME_SECONDS, by default PYCOLLECTIVE_TIMEOUT):\n" +
                             list(stalls, stall_.shutdown_seconds);
    const CommunicatorFault why(Fault::timeout, stalls[0].missing[0], text);
    if (!carrier_->end_all(why)) team_->poison({why.fault, why.culprit, text});
  }
}

std::string Engine::label() const {
  return "pycollective: communicator '" + team_->name() + "', rank " + std::to_string(team_->rank());
}

}  // namespace pc::engine
