// Detection of ranks that end, leave or are stopped while others wait for them.
#include <algorithm>
#include <thread>
#include <utility>

#include "base/environment.h"
#include "engine/engine.h"

namespace pc::engine {
namespace {

using std::chrono::milliseconds;

constexpr double kLeastSilence = 2.0;  // seconds: on a busy machine a running rank may be silent for some time

double seconds_of(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

// A rank whose process has ended; the board's lock learns of it slightly earlier than peers do.  -1: none.
int32_t Engine::find_lost() const {
  for (int tried = 0; tried < 500; ++tried) {
    for (int32_t peer = 0; peer < team_->size(); ++peer)
      if (peer != team_->rank() && team_->gone(peer)) return peer;
    std::this_thread::sleep_for(milliseconds(1));
  }
  return -1;
}

// Raises the reason why a peer will never submit an awaited operation, including a join.
void Engine::check_peers(Clock::time_point now) {
  if (now - checked_ < kCheckEvery) return;
  const auto since = std::min<Clock::duration>(now - std::exchange(checked_, now), kInspectEvery);
  if (board_ == nullptr) return team_->require_sound();  // the rounds of messages find who is missing
  board_->beat();
  observe(since);
  const auto missing = [&](int32_t peer) {
    const std::string operation = board_->awaited_from(peer, now + kMoment);
    return operation.empty() ? operation : "; it has not submitted '" + operation + "'";
  };
  raise_if_lost(missing);
  const double seconds = std::max(environment().timeout, kLeastSilence);
  for (int32_t peer = 0; peer < team_->size(); ++peer) {
    const bool left = team_->departed(peer);
    // A rank has as long as a call's timeout to show that it runs, whether or not its program has work.
    const bool stopped = seconds_of(progress_[static_cast<size_t>(peer)].silent) >= seconds;
    if (peer == team_->rank() || !(left || stopped)) continue;
    const std::string what = missing(peer);
    if (what.empty() || others_are_busy(peer)) continue;
    const std::string failure = left ? team_->failure_of(peer) : "";
    const std::string how = !failure.empty() ? " is gone (its program has failed: " + failure + ")"
                            : left ? " has shut its engine down, or its program has ended"
                                   : " has not run for " + number_text(seconds) + " s: its process is stopped";
    const Fault fault = !failure.empty() ? Fault::peer_lost : left ? Fault::aborted : Fault::timeout;
    team_->poison({fault, peer, team_->label(peer) + how + what});
    team_->raise();
  }
}

// `since`: the time elapsed while this rank waited.
void Engine::observe(Clock::duration since) {
  const uint64_t batches = board_->batches();
  for (int32_t peer = 0; peer < team_->size(); ++peer) {
    Progress& progress = progress_[static_cast<size_t>(peer)];
    const uint64_t beats = board_->beats(peer), completed = board_->completed(peer);
    const bool silent = std::exchange(progress.beats, beats) == beats;
    const bool behind = std::exchange(progress.completed, completed) == completed && completed < batches;
    progress.silent = silent ? progress.silent + since : Clock::duration{};
    progress.behind = behind ? progress.behind + since : Clock::duration{};
  }
}

// Whether a rank other than `awaited` has yet to complete a batch that all have submitted: it would lose it if the team
// were poisoned now.  A rank has as long for a batch as for a call; ranks that have left complete nothing.
bool Engine::others_are_busy(int32_t awaited) const {
  if (carrier_->has_batch()) return true;
  const uint64_t batches = board_->batches();  // final: nothing becomes ready without `awaited`
  for (int32_t peer = 0; peer < team_->size(); ++peer) {
    const bool owes = peer != team_->rank() && peer != awaited && board_->completed(peer) < batches;
    if (!owes || team_->departed(peer)) continue;
    if (seconds_of(progress_[static_cast<size_t>(peer)].behind) < environment().timeout) return true;
  }
  return false;
}

// Raises another rank's fault, or that its process has ended; `missing` gives what it has not submitted.
void Engine::raise_if_lost(const std::function<std::string(int32_t)>& missing) {
  if (team_->poisoned()) team_->raise();
  for (int32_t peer = 0; peer < team_->size(); ++peer) {
    // In this order: a rank departs before its process ends.
    if (peer == team_->rank() || !team_->gone(peer) || team_->departed(peer)) continue;
    team_->poison({Fault::peer_lost, peer, team_->label(peer) + " is gone (its process has ended)" + missing(peer)});
    team_->raise();
  }
}

// Another rank holds the board: for longer than the timeout of calls only if it is stopped.
void Engine::locked_out(int32_t holder, std::chrono::nanoseconds waited) {
  raise_if_lost([](int32_t) { return std::string(); });
  if (holder >= 0) team_->note_wait(holder, Clock::now());
  const double seconds = environment().timeout;
  if (seconds_of(waited) < seconds) return;
  team_->poison({Fault::timeout, holder,
                 (holder < 0 ? "a rank" : team_->label(holder)) + " has held the lock of the engine's board for " +
                     number_text(seconds) + " s, as seen by " + team_->label(team_->rank()) +
                     ": its process is stopped, or starved of its core"});
  team_->raise();
}

}  // namespace pc::engine
