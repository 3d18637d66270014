// Between ranks on different hosts: which of them have left or are lost, and why a communicator was given up.  Separate
// from the links of the data, which a large message may fill.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "executor/control.h"
#include "link/link.h"

namespace pc {

// Used by several threads.
class ControlLinks {
 public:
  using Time = std::chrono::steady_clock::time_point;
  struct Sign {
    Time last{};
    bool answered = false;  // else that of a new connection, whose other end may still prepare the communicator
  };
  using Heard = std::map<std::string, Sign>;  // by host
  void add(int32_t rank, std::unique_ptr<Link> link);
  // By rank of the communicator: what identifies its host in the whole job, and the host's name.
  void set_hosts(const std::vector<std::string>& hosts, std::vector<std::string> names);
  // Tell all ranks on other hosts.
  void send_abort(const Abort& abort);
  void send_depart(const std::string& failure);
  // This rank continues in a communicator without that one.
  void send_expelled(int32_t rank);
  struct Awaited {
    int32_t rank = -1;  // -1: none
    Time known{};
  };
  // This rank waits for that one, of any host: heartbeats tell the others, until some time after the last such call.
  void set_awaited(Awaited awaited);
  // For which rank another one waits.
  Awaited awaited(int32_t rank) const;
  // Sends and receives heartbeats, and notes when a rank of each host was heard.  `was_stopped`: this process did not
  // run lately, and cannot tell.
  void beat(Time now, bool was_stopped, Heard& heard);
  // Which hosts are silent.
  void judge(Time now, const Heard& heard);
  // Receives what has arrived; the first abort record, if any.
  std::optional<Abort> receive();
  bool departed(int32_t rank) const;
  // See RankBlock::failure.
  std::string failure(int32_t rank) const;
  // The connection has ended although the rank has not departed, all ranks of its host are silent, or a rank reported
  // it: its connection may be open in a forked process.
  bool lost(int32_t rank) const;
  // A rank is lost because its host does not answer.
  bool silent(int32_t rank) const;
  // Some rank continues without this one.
  bool expelled() const;
  // See Link.
  int timeouts(int32_t rank) const;
  // For messages: how a lost rank was found out; and a rank's host, as " (host NAME)".
  std::string reason(int32_t rank) const;
  std::string host(int32_t rank) const;

 private:
  struct Peer final : Inbox {
    std::unique_ptr<Link> link;
    std::string host, text, failure;
    std::optional<Abort> abort;
    bool departed = false, violated = false, silent = false, expels = false;
    Sign heard;
    Awaited awaited;
    char* place(const MessageHeader& header) override;
    void arrived(const MessageHeader& header) override;
    bool unanswered() const;
  };
  const Peer* find(int32_t rank) const;
  void send(const MessageHeader& header, const std::string& text);
  void receive_all();
  void note(const Abort& abort);

  mutable std::mutex mutex_;
  std::map<int32_t, Peer> peers_;
  std::vector<std::string> host_names_;  // by rank
  std::string sending_, departing_;  // the texts of the abort and of the departure: there is at most one of each
  bool over_ = false;  // an abort was sent or has arrived
  Awaited awaited_;
  int32_t lost_ = -1;  // the rank that it reports as lost
};

// Begins to send and to receive heartbeats on these links, for as long as they exist: see heartbeats.cpp.
void start_heartbeats(const std::shared_ptr<ControlLinks>& links);

}  // namespace pc
