#include "executor/cpu/hosts/remote.h"

#include <algorithm>

#include "executor/cpu/team.h"

namespace pc {
namespace {

char nothing;  // the place of a message without content
constexpr uint64_t kHasPlacement = 1 << 8;  // in an announcement's value, above a placement

}  // namespace

void Remote::send(const Operation& op, uint64_t value, uint64_t call, const void* data, uint64_t bytes, bool more) {
  if (announced_ != op.plan) {  // kept by the call's plan until it has been sent, and by announced_
    announced_ = op.plan;
    link_->send({0, 0, op.sequence, 0, sizeof(Fingerprint), MessageKind::announce, 0}, &announced_->fingerprint, true);
  }
  posted_ = link_->send({value, call, op.sequence, op.step, bytes, MessageKind::data, 0}, data, more);
}

void Remote::announce(const Operation& op, uint64_t call) {
  if (announced_call_ == op.sequence || link_->sends()) return;  // a peer that does not read is told of later calls
  announced_call_ = op.sequence;
  announced_ = in_flight_ = op.plan;
  link_->send({0, call, op.sequence, op.step, sizeof(Fingerprint), MessageKind::announce, 0}, &in_flight_->fingerprint);
}

void Remote::send_placement(const Operation& op, uint64_t call, uint8_t placement) {
  announced_call_ = op.sequence;
  announced_ = placed_ = op.plan;
  const uint64_t value = kHasPlacement | placement;
  posted_ = link_->send({value, call, op.sequence, op.step, sizeof(Fingerprint), MessageKind::announce, 0},
                        &placed_->fingerprint);
}

std::optional<uint8_t> Remote::placement(uint64_t sequence) const {
  for (const SentPlacement& each : placements_)
    if (each.sequence == sequence) return each.placement;
  return std::nullopt;
}

void Remote::post(uint64_t value, void* into, uint64_t bytes) {
  if (block_.counter.load(std::memory_order_relaxed) >= value) return;
  for (const Expected& one : expected_)
    if (one.value == value) return;
  expected_.push_back({value, bytes > 0 ? static_cast<char*>(into) : &nothing, bytes});
}

char* Remote::place(const MessageHeader& header) {
  if (header.kind == MessageKind::announce) {
    if (header.bytes != sizeof(Fingerprint)) return violate();
    return reinterpret_cast<char*>(&announcement_);
  }
  if (header.kind != MessageKind::data) return violate();
  if (header.sequence < sequence_) stale_ = header.sequence;
  if (stale_ != 0) return nullptr;
  if (header.sequence > sequence_) return nullptr;
  note(header);
  if (header.call != call_) return nullptr;  // found and reported by this rank's waits
  const auto found =
      std::find_if(expected_.begin(), expected_.end(), [&](const Expected& one) { return one.value == header.value; });
  if (found == expected_.end()) return nullptr;
  return found->bytes == header.bytes ? found->into : violate();
}

// Enters the peer's call in its block, as a peer of this host does itself: see Team::announce.
void Remote::note(const MessageHeader& header) {
  const uint32_t at = header.sequence % kRing;
  Entry& entry = block_.entry[at];
  if (entry.complete.load(std::memory_order_relaxed) == header.sequence) return;
  entry.begun.store(header.sequence, std::memory_order_relaxed);
  entry.fingerprint = announcement_;
  entry.step = header.step;
  block_.call[at].store(header.call, std::memory_order_relaxed);
  entry.complete.store(header.sequence, std::memory_order_relaxed);
}

std::optional<uint64_t> Remote::known_call(const RankBlock& of, uint64_t sequence) {
  const uint32_t at = sequence % kRing;
  if (of.entry[at].complete.load(std::memory_order_relaxed) != sequence) return std::nullopt;
  return of.call[at].load(std::memory_order_relaxed);
}

void Remote::arrived(const MessageHeader& header) {
  if (header.kind == MessageKind::announce && header.call != 0) {
    note(header);
    if (header.value != 0) {
      SentPlacement& older = placements_[placements_[0].sequence > placements_[1].sequence ? 1 : 0];
      older = {header.sequence, static_cast<uint8_t>(header.value)};
    }
    const auto own = own_ != nullptr ? known_call(*own_, header.sequence) : std::nullopt;
    if (own.value_or(header.call) != header.call) stale_ = header.sequence;
  }
  if (header.kind != MessageKind::data) return;
  const auto found =
      std::find_if(expected_.begin(), expected_.end(), [&](const Expected& one) { return one.value == header.value; });
  if (found != expected_.end()) {
    *found = expected_.back();
    expected_.pop_back();
  }
  block_.counter.store(header.value, std::memory_order_release);
}

}  // namespace pc
