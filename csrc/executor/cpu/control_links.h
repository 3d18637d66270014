// Between ranks on different hosts: which of them have left or are lost, and why a communicator was given up.  Separate
// from the links of the data, which a large message may fill.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "base/status.h"
#include "link/link.h"

namespace pc {

// Used by several threads.
class ControlLinks {
 public:
  struct Abort {
    Fault fault;
    int32_t culprit;
    std::string text;
  };

  void add(int32_t rank, std::unique_ptr<Link> link);
  // Tell all ranks on other hosts.
  void send_abort(const Abort& abort);
  void send_depart();
  // Receives what has arrived; the first abort record, if any.
  std::optional<Abort> receive();
  bool departed(int32_t rank) const;
  // The connection has ended although the rank has not departed.
  bool lost(int32_t rank) const;
  // How a lost rank was found out, for messages.
  std::string reason(int32_t rank) const;

 private:
  struct Peer final : Inbox {
    std::unique_ptr<Link> link;
    std::string text;
    std::optional<Abort> abort;
    bool departed = false, violated = false;
    char* place(const MessageHeader& header) override;
    void arrived(const MessageHeader& header) override;
  };
  const Peer* find(int32_t rank) const;
  void send(const MessageHeader& header);

  mutable std::mutex mutex_;
  std::map<int32_t, std::unique_ptr<Peer>> peers_;
  std::string sending_;  // the text of the abort that is sent: there is at most one
};

}  // namespace pc
