// What a rank knows of the processes of other hosts, and tells them, outside its calls.
#include <utility>

#include "executor/cpu/heartbeats.h"
#include "executor/cpu/team.h"

namespace pc {
namespace {

constexpr uint32_t kExpelled = ~0u;  // in the block of an expelled rank of this host, as its number of survivor

}  // namespace

void Team::watch_hosts(const std::vector<int32_t>& hosts, std::vector<std::string> names) {
  if (!links_ || is_pair_) return;
  links_->set_hosts(hosts, std::move(names));
  start_heartbeats(links_);
}

bool Team::departed(int32_t rank) const {
  const bool left =
      control_.block(rank).presence.load(std::memory_order_acquire) == static_cast<uint32_t>(Presence::departed);
  return left || (links_ && links_->departed(members_[rank]));
}

void Team::expel(int32_t rank) {
  if (remote(rank) != nullptr) links_->send_expelled(rank);
  else control_.block(rank).survivor.store(kExpelled, std::memory_order_release);
}

bool Team::expelled() const {
  return control_.block(rank_).survivor.load(std::memory_order_acquire) == kExpelled || (links_ && links_->expelled());
}

}  // namespace pc
