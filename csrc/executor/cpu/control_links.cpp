#include "executor/cpu/control_links.h"

#include <cerrno>
#include <cstring>

namespace pc {
namespace {

constexpr uint64_t kMostText = 4096;  // bytes

}  // namespace

char* ControlLinks::Peer::place(const MessageHeader& header) {
  const bool known = header.kind == MessageKind::abort || header.kind == MessageKind::depart;
  if (!known || header.bytes > kMostText || header.value > static_cast<uint64_t>(Fault::aborted)) {
    violated = true;
    return nullptr;
  }
  text.assign(header.bytes + 1, '\0');
  return text.data();
}

void ControlLinks::Peer::arrived(const MessageHeader& header) {
  if (header.kind == MessageKind::depart) {
    departed = true;
    return;
  }
  text.pop_back();
  if (!abort) abort = Abort{static_cast<Fault>(header.value), static_cast<int32_t>(header.step), text};
}

void ControlLinks::add(int32_t rank, std::unique_ptr<Link> link) {
  auto peer = std::make_unique<Peer>();
  peer->link = std::move(link);
  peers_[rank] = std::move(peer);
}

void ControlLinks::send(const MessageHeader& header) {
  for (const auto& [rank, peer] : peers_)
    if (!peer->link->closed()) peer->link->send(header, sending_.data());
}

void ControlLinks::send_abort(const Abort& abort) {
  const std::lock_guard lock(mutex_);
  if (!sending_.empty()) return;
  sending_ = abort.text.empty() ? " " : abort.text.substr(0, kMostText);
  send({static_cast<uint64_t>(abort.fault), 0, 0, abort.culprit, sending_.size(), MessageKind::abort, 0});
}

void ControlLinks::send_depart() {
  const std::lock_guard lock(mutex_);
  send({0, 0, 0, 0, 0, MessageKind::depart, 0});
}

std::optional<ControlLinks::Abort> ControlLinks::receive() {
  const std::lock_guard lock(mutex_);
  std::optional<Abort> found;
  for (const auto& [rank, peer] : peers_) {
    peer->link->progress(*peer);
    if (!found) found = peer->abort;
  }
  return found;
}

const ControlLinks::Peer* ControlLinks::find(int32_t rank) const {
  const auto found = peers_.find(rank);
  return found == peers_.end() ? nullptr : found->second.get();
}

bool ControlLinks::departed(int32_t rank) const {
  const std::lock_guard lock(mutex_);
  const Peer* peer = find(rank);
  return peer != nullptr && peer->departed;
}

bool ControlLinks::lost(int32_t rank) const {
  const std::lock_guard lock(mutex_);
  const Peer* peer = find(rank);
  return peer != nullptr && !peer->departed && (peer->link->closed() || peer->violated);
}

std::string ControlLinks::reason(int32_t rank) const {
  const std::lock_guard lock(mutex_);
  const Peer* peer = find(rank);
  if (peer == nullptr) return "it is unknown";
  if (peer->violated) return "it sent an invalid message";
  const int error = peer->link->error();
  if (error == 0 || error == ECONNRESET || error == EPIPE) return "its process has ended";
  return std::string("its host cannot be reached: ") + strerror(error);
}

}  // namespace pc
