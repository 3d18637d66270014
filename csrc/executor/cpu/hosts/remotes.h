// The ranks of a team that are on other hosts, and the connections to them.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "executor/cpu/hosts/control_links.h"
#include "executor/cpu/hosts/remote.h"

namespace pc {

class UcxWorker;

// The sockets to a rank on another host: of collectives (-1 if UCX carries them), of control messages, and of messages
// from rank to rank.
struct Sockets {
  int32_t rank;
  int data, control, messages;
};

class Remotes {
 public:
  // Takes over the sockets to ranks that are not among `here`.  `ucx`: connected with all of them, or null.  Throws
  // InvalidArgument.
  void connect(int32_t size, const std::vector<int32_t>& here, const std::vector<Sockets>& others,
               const std::shared_ptr<UcxWorker>& ucx);
  // Of a channel: rank 1 - `own` is the peer, to which the communicator is connected.  The channel in the other
  // direction uses the same connection: this rank only sends on it, or only receives.
  void connect_pair(const Remotes& communicator, int32_t own, int32_t peer);

  // A rank; null if it is on this host.
  Remote* at(int32_t rank) const { return all_.empty() ? nullptr : all_[static_cast<size_t>(rank)].get(); }
  const std::vector<std::shared_ptr<Remote>>& all() const { return all_; }
  // Continues all messages; true if some wait for their peers.
  bool pump();
  // Sleeps until a message can be sent or received: those that calls expect and, if `receives`, any of `peer`.  At most
  // `limit`, and briefly if `peer` is on this host; false: then there is nothing to wait for.
  bool nap(int32_t peer, bool receives, std::chrono::milliseconds limit);
  // What is on its way may no longer touch the memory of calls that have begun.
  void abandon();

  std::shared_ptr<ControlLinks> control;  // of the communicator; null: all ranks are on one host
  std::vector<int32_t> first;             // the first rank of each other host, once the hosts are known

 private:
  std::vector<std::shared_ptr<Remote>> all_;  // by rank; empty: all are on this host
  std::vector<Sockets> sockets_;
  std::vector<std::unique_ptr<Link>> messages_;  // own the sockets of channels
};

}  // namespace pc
