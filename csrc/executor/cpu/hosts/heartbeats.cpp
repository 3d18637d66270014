// A thread of this process shows to ranks on other hosts that it runs, and finds out which hosts are silent, also while
// no rank calls: a host whose processes are all stopped still acknowledges what it is sent.
#include <algorithm>
#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

#include "base/environment.h"
#include "base/forks.h"
#include "base/threads.h"
#include "executor/cpu/hosts/control_links.h"

namespace pc {
namespace {

using Seconds = std::chrono::duration<double>;
using SteadyClock = std::chrono::steady_clock;

constexpr double kBeatsPerTimeout = 32;  // silence is found out up to two of them late
constexpr double kLongestPause = 1.0;  // seconds

struct Heartbeats {
  std::mutex mutex;
  std::vector<std::weak_ptr<ControlLinks>> links;  // of all communicators of this process
  bool running = false;

  std::vector<std::shared_ptr<ControlLinks>> living();
  void run();
};

// Those that exist; if there are none, the thread is to end.
std::vector<std::shared_ptr<ControlLinks>> Heartbeats::living() {
  const std::lock_guard lock(mutex);
  std::vector<std::shared_ptr<ControlLinks>> found;
  for (const auto& each : links)
    if (auto alive = each.lock()) found.push_back(std::move(alive));
  links.assign(found.begin(), found.end());
  running = !found.empty();
  return found;
}

void Heartbeats::run() {
  const double limit = environment().host_timeout;
  const Seconds pause(std::min(limit / kBeatsPerTimeout, kLongestPause));
  auto before = SteadyClock::now();
  for (;;) {
    std::this_thread::sleep_for(pause);
    const auto all = living();
    if (all.empty()) return;
    const auto now = SteadyClock::now();
    const bool was_stopped = Seconds(now - before).count() > limit / 2;
    before = now;
    ControlLinks::Heard heard;  // a host's ranks may be in different communicators
    for (const auto& each : all) each->beat(now, was_stopped, heard);
    for (const auto& each : all) each->judge(now, heard);
  }
}

}  // namespace

void start_heartbeats(const std::shared_ptr<ControlLinks>& links) {
  ControlLinks::Heard heard;
  links->beat(SteadyClock::now(), false, heard);  // the first at once: until it arrives, silence counts only later
  auto& mine = of_this_process<Heartbeats>();
  const std::lock_guard lock(mine.mutex);
  if (!mine.running) start_thread("pc-heartbeats", [&mine] { mine.run(); });
  mine.running = true;
  mine.links.push_back(links);
}

}  // namespace pc
