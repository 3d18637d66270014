// What a rank knows of the processes of other hosts, and tells them, outside its calls.
#include <algorithm>
#include <utility>

#include "executor/cpu/team.h"

namespace pc {
namespace {

constexpr uint32_t kExpelled = ~0u;  // RankBlock::survivor of an expelled rank of this host

constexpr int kMostTimeouts = 5;        // in a row: more than six seconds

}  // namespace

void Team::watch_hosts(const std::vector<std::string>& hosts, std::vector<std::string> names,
                       const std::vector<int32_t>& numbers) {
  if (!remotes_.control || is_channel()) return;
  for (int32_t r = 0; r < size(); ++r)
    if (remote(r) != nullptr && std::find(numbers.begin(), numbers.begin() + r, numbers[r]) == numbers.begin() + r)
      remotes_.first.push_back(r);
  remotes_.control->set_hosts(hosts, std::move(names));
  start_heartbeats(remotes_.control);
}

bool Team::departed(int32_t rank) const {
  const bool left = control_.block(rank).presence.load(std::memory_order_acquire) == Presence::departed;
  return left || (remotes_.control && remotes_.control->departed(members_[rank]));
}

// Ranks of different hosts may exchange nothing in a weighted call.  So each announces it to the ranks before and after
// it, unless it has compared the call with theirs; these compare it now or in their next call.  False: a fault.
bool Team::compare_neighbours(const Operation& op) {
  if (is_channel() || !traits(op.plan->fingerprint.collective).weighted) return true;
  for (const int32_t peer : {(rank() + 1) % size(), (rank() + size() - 1) % size()}) {
    Remote* const each = remote(peer);
    if (each == nullptr || checked_[peer] == op.sequence) continue;
    each->announce(op, op.digest);
    each->progress();
    if (each->stale() == 0) continue;
    report_stale(op, peer);
    return false;
  }
  return true;
}

// Some networks lose large packets without a word, as where a tunnel's MTU is smaller than the interfaces': heartbeats
// arrive, and the data never does.  False: so it is.
bool Team::passes_large_messages(const Operation& op) {
  for (int32_t r = 0; r < size(); ++r) {
    const Remote* const to = remote(r);
    if (to == nullptr || to->link().timeouts() < kMostTimeouts || remotes_.control->timeouts(members_[r]) > 0) continue;
    give_up(op, Fault::peer_lost, members_[r],
            "large packets between " + label(rank()) + remotes_.control->host(members_.self()) + " and " + label(r) +
                remotes_.control->host(members_[r]) + " are lost, and only small ones arrive, during " + describe(op) +
                ": check the MTU of the interfaces and of the network between them");
    return false;
  }
  return true;
}

void Team::expel(int32_t rank) {
  if (remote(rank) != nullptr) remotes_.control->send_expelled(rank);
  else control_.block(rank).survivor.store(kExpelled, std::memory_order_release);
}

bool Team::expelled() const {
  return control_.block(rank()).survivor.load(std::memory_order_acquire) == kExpelled ||
         (remotes_.control && remotes_.control->expelled());
}

}  // namespace pc
