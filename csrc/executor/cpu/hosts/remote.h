// A rank on another host, as this rank knows it: from its messages.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "executor/control.h"
#include "executor/plan.h"
#include "link/link.h"

namespace pc {

struct Operation;

class Remote final : public Inbox {
 public:
  // `link` carries what the schedules send.
  explicit Remote(std::shared_ptr<Link> link) : link_(std::move(link)) {
    block_.presence.store(Presence::here, std::memory_order_relaxed);
  }

  // Stands for its block in shared memory: the counter is that of the last message that has arrived.
  RankBlock& block() { return block_; }

  // From now on messages of this call are received.  False: the peer has announced another one.
  // `own`: this rank's block, with its earlier calls.
  bool enter(uint64_t sequence, uint64_t call, const RankBlock& own) {
    sequence_ = sequence;
    call_ = call;
    own_ = &own;
    return known_call(block_, sequence).value_or(call) == call;
  }
  // Lets the peer compare this call with its own, once per call: for calls in which it may receive nothing.
  void announce(const Operation& op, uint64_t call);
  // Announces the call, with the placement of the arrays of this rank's host.
  void send_placement(const Operation& op, uint64_t call, uint8_t placement);
  // The placement that the peer has sent in a call.
  std::optional<uint8_t> placement(uint64_t sequence) const;
  // `more`: another message to this rank follows at once.
  void send(const Operation& op, uint64_t value, uint64_t call, const void* data, uint64_t bytes, bool more);
  // The message that is sent at the counter `value` goes to this memory.  May be repeated.
  void post(uint64_t value, void* into, uint64_t bytes);
  void progress() {
    if (link_->progress(*this)) left = {};
    was_read_ = true;
  }
  // Reads what has arrived, unless that was done since the last look.
  void look() {
    if (!was_read_) progress();
    was_read_ = false;
  }

  uint64_t sent() const { return link_->sent(); }
  uint64_t posted() const { return posted_; }  // messages given to the link
  bool expects() const { return !expected_.empty(); }
  // There is something to send, or a message is expected.
  bool busy() const { return link_->sends() || !expected_.empty(); }
  Link& link() const { return *link_; }
  bool violated() const { return violated_; }  // it has sent what no rank of this version sends
  // The number of a call that differs from this rank's: the peer has announced it, or sent in it what this rank, which
  // has completed it, did not expect.  0: none.
  uint64_t stale() const { return stale_; }
  const Fingerprint& announcement() const { return announcement_; }

  std::chrono::steady_clock::time_point left{};  // when it was found to have departed and nothing more had arrived

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
  // The digest of the call that a rank has made with this number, if it is kept in the rank's block.
  static std::optional<uint64_t> known_call(const RankBlock& of, uint64_t sequence);

  std::shared_ptr<Link> link_;
  const RankBlock* own_ = nullptr;
  std::vector<Expected> expected_;
  uint64_t sequence_ = 0, call_ = 0;  // of this rank's call
  uint64_t posted_ = 0;
  std::shared_ptr<const Plan> announced_;  // to the peer
  std::shared_ptr<const Plan> in_flight_;  // whose fingerprint announce() sends: until all has been sent
  uint64_t announced_call_ = 0;  // its number
  std::shared_ptr<const Plan> placed_;  // whose fingerprint send_placement() sends
  struct SentPlacement {
    uint64_t sequence = 0;
    uint8_t placement = 0;
  };
  SentPlacement placements_[2];  // the newest: the peer is at most one such call ahead
  Fingerprint announcement_{};  // by the peer
  bool violated_ = false;
  bool was_read_ = false;
  uint64_t stale_ = 0;
};

}  // namespace pc
