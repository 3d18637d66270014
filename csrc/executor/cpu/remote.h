// A rank on another host, as this rank knows it: from its messages.
#pragma once

#include <memory>
#include <vector>

#include "executor/control.h"
#include "executor/plan.h"
#include "link/link.h"

namespace pc {

struct Operation;

class Remote final : public Inbox {
 public:
  // `link` carries what the schedules send.
  explicit Remote(std::unique_ptr<Link> link) : link_(std::move(link)) {
    block_.presence.store(static_cast<uint32_t>(Presence::here), std::memory_order_relaxed);
  }

  // Stands for its block in shared memory: the counter is that of the last message that has arrived.
  RankBlock& block() { return block_; }

  // From now on messages of this call are received.
  void enter(uint64_t sequence, uint64_t call) {
    sequence_ = sequence;
    call_ = call;
  }
  void send(const Operation& op, uint64_t value, uint64_t call, const void* data, uint64_t bytes);
  // The message that is sent at the counter `value` goes to this memory.  May be repeated.
  void post(uint64_t value, void* into, uint64_t bytes);
  bool progress() { return link_->progress(*this); }

  uint64_t sent() const { return link_->sent(); }
  uint64_t posted() const { return posted_; }  // messages given to the link
  bool expects() const { return !expected_.empty(); }
  // There is something to send, or a message is expected.
  bool busy() const { return link_->sends() || !expected_.empty(); }
  const Link& link() const { return *link_; }
  bool violated() const { return violated_; }  // it has sent what no rank of this version sends
  // The number of an earlier call in which it has sent what this rank did not expect: they made different calls.  0: none.
  uint64_t stale() const { return stale_; }
  const Fingerprint& announcement() const { return announcement_; }

  char* place(const MessageHeader& header) override;
  void arrived(const MessageHeader& header) override;

 private:
  struct Expected {
    uint64_t value;
    char* into;
    uint64_t bytes;
  };
  void note(const MessageHeader& header);
  char* violate() {
    violated_ = true;
    return nullptr;
  }

  RankBlock block_{};
  std::unique_ptr<Link> link_;
  std::vector<Expected> expected_;
  uint64_t sequence_ = 0, call_ = 0;  // of this rank's call
  uint64_t posted_ = 0;
  std::shared_ptr<const Plan> announced_;  // to the peer
  Fingerprint announcement_{};  // by the peer
  bool violated_ = false;
  uint64_t stale_ = 0;
};

}  // namespace pc
