// Which ranks have not submitted what others wait for: told after a while, on request, and in the end fatal.
#include <cstdio>

#include "engine/engine.h"

namespace pc::engine {
namespace {

std::string list(const std::vector<Stall>& stalls) {
  std::string text;
  for (const Stall& stall : stalls) {
    char seconds[32];
    std::snprintf(seconds, sizeof seconds, "%.1f", stall.seconds);
    text += "  '" + stall.name + "' has waited " + seconds + " s for rank";
    text += stall.missing.size() > 1 ? "s" : "";
    for (size_t i = 0; i < stall.missing.size(); ++i) text += (i > 0 ? ", " : " ") + std::to_string(stall.missing[i]);
    text += "\n";
  }
  return text;
}

}  // namespace

std::string Engine::report() { return list(board_->stalls(0, true)); }

// Standard error, and not Python's logging: the interpreter may be what is stuck.
void Engine::inspect() {
  const std::string me = "pycollective: communicator '" + team_->name() + "', rank " + std::to_string(team_->rank());
  if (const uint32_t wanted = reports_wanted.load(); wanted != reports_given_) {
    reports_given_ = wanted;
    const std::string text = report();
    std::fprintf(stderr, "%s: %s\n%s", me.c_str(),
                 text.empty() ? "no operation waits for a rank" : "operations that wait:", text.c_str());
  }
  const auto now = Clock::now();
  const bool watches = stall_.warn_seconds > 0 || stall_.shutdown_seconds > 0;
  if (!watches || team_->poisoned()) return;
  try {
    const auto since = std::chrono::duration<double>(now - inspected_).count();
    if (stall_.warn_seconds > 0 && since >= stall_.warn_seconds) {
      const auto stalls = board_->stalls(stall_.warn_seconds, false);
      if (!stalls.empty()) {
        inspected_ = now;
        std::fprintf(stderr, "%s: some ranks have not submitted what others wait for:\n%s", me.c_str(),
                     list(stalls).c_str());
      }
    }
    if (stall_.shutdown_seconds > 0) {
      const auto stalls = board_->stalls(stall_.shutdown_seconds, true);
      if (!stalls.empty())
        team_->poison(Fault::timeout, stalls[0].missing[0], "operations waited too long:\n" + list(stalls));
    }
  } catch (const CommunicatorFault& fault) {
    fail(fault);
  }
}

}  // namespace pc::engine
