#include "executor/cpu/hosts/control_links.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/environment.h"

namespace pc {
namespace {

using std::chrono::steady_clock;

constexpr uint64_t kMostText = 4096;  // bytes
constexpr auto kStillWaits = std::chrono::milliseconds(250);  // a rank that waits notes it every few milliseconds
constexpr std::chrono::duration<double> kFirstBeat(10);  // more time for it

bool is_known(MessageKind kind) {
  return kind == MessageKind::abort || kind == MessageKind::depart || kind == MessageKind::heartbeat ||
         kind == MessageKind::expelled;
}

}  // namespace

char* ControlLinks::Peer::place(const MessageHeader& header) {
  if (!is_known(header.kind) || header.bytes > kMostText || header.value > static_cast<uint64_t>(Fault::aborted)) {
    violated = true;
    return nullptr;
  }
  text.assign(header.bytes + 1, '\0');
  return text.data();
}

void ControlLinks::Peer::arrived(const MessageHeader& header) {
  heard = {steady_clock::now(), true};
  departed = departed || header.kind == MessageKind::depart;
  expels = expels || header.kind == MessageKind::expelled;
  if (header.kind == MessageKind::heartbeat) awaited = {static_cast<int32_t>(header.step), heard.last};
  text.resize(header.bytes);
  if (header.kind == MessageKind::depart) failure = text;
  if (header.kind != MessageKind::abort || abort) return;
  const auto culprit = static_cast<int32_t>(header.step);
  abort = Abort{static_cast<Fault>(header.value), culprit, text, static_cast<int64_t>(header.call), header.sequence};
}

bool ControlLinks::Peer::unanswered() const {
  const int error = link->error();
  return error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH || (silent && !link->closed());
}

void ControlLinks::add(int32_t rank, std::unique_ptr<Link> link) {
  Peer& peer = peers_[rank];
  peer.link = std::move(link);
  peer.heard.last = steady_clock::now();
}

void ControlLinks::set_hosts(const std::vector<std::string>& hosts, std::vector<std::string> names) {
  const std::lock_guard lock(mutex_);
  for (auto& [rank, peer] : peers_) peer.host = hosts.at(static_cast<size_t>(rank));
  host_names_ = std::move(names);
}

void ControlLinks::send(const MessageHeader& header, const std::string& text) {
  for (const auto& [rank, peer] : peers_)
    if (!peer.link->closed()) peer.link->send(header, text.data());
}

void ControlLinks::send_abort(const Abort& abort) {
  const std::lock_guard lock(mutex_);
  if (!sending_.empty()) return;
  note(abort);
  sending_ = abort.text.empty() ? " " : abort.text.substr(0, kMostText);
  send({static_cast<uint64_t>(abort.fault), static_cast<uint64_t>(abort.channel), abort.call, abort.culprit,
        sending_.size(), MessageKind::abort, 0},
       sending_);
}

void ControlLinks::send_depart(const std::string& failure) {
  const std::lock_guard lock(mutex_);
  departing_ = failure;
  send({0, 0, 0, 0, departing_.size(), MessageKind::depart, 0}, departing_);
}

void ControlLinks::send_expelled(int32_t rank) {
  const std::lock_guard lock(mutex_);
  const Peer* peer = find(rank);
  if (peer == nullptr || peer->link->closed()) return;
  peer->link->send({0, 0, 0, 0, 0, MessageKind::expelled, 0}, nullptr);
}

void ControlLinks::set_awaited(Awaited awaited) {
  const std::lock_guard lock(mutex_);
  awaited_ = awaited;
}

ControlLinks::Awaited ControlLinks::awaited(int32_t rank) const {
  const std::lock_guard lock(mutex_);
  const Peer* peer = find(rank);
  return peer != nullptr ? peer->awaited : Awaited{};
}

void ControlLinks::note(const Abort& abort) {
  over_ = true;
  if (abort.fault == Fault::peer_lost) lost_ = abort.culprit;
}

void ControlLinks::receive_all() {
  for (auto& [rank, peer] : peers_) {
    peer.link->progress(peer);
    if (peer.abort && !over_) note(*peer.abort);
  }
}

std::optional<Abort> ControlLinks::receive() {
  const std::lock_guard lock(mutex_);
  receive_all();
  for (const auto& [rank, peer] : peers_)
    if (peer.abort) return peer.abort;
  return std::nullopt;
}

void ControlLinks::beat(Time now, bool was_stopped, Heard& heard) {
  const std::lock_guard lock(mutex_);
  receive_all();
  const int32_t awaited = now - awaited_.known < kStillWaits ? awaited_.rank : -1;
  for (auto& [rank, peer] : peers_) {
    const bool full = peer.link->sends() || (over_ && peer.silent);
    if (!peer.link->closed() && !full) peer.link->send({0, 0, 0, awaited, 0, MessageKind::heartbeat, 0}, nullptr);
    if (was_stopped) peer.heard.last = std::max(peer.heard.last, now);
    Sign& of_host = heard[peer.host];
    of_host.last = std::max(of_host.last, peer.heard.last);
    of_host.answered |= peer.heard.answered;
  }
}

// A rank that is stopped alone, on a host whose other ranks answer, is only late.
void ControlLinks::judge(Time now, const Heard& heard) {
  const std::lock_guard lock(mutex_);
  const std::chrono::duration<double> limit(environment().host_timeout);
  for (auto& [rank, peer] : peers_) {
    const auto found = heard.find(peer.host);
    if (found == heard.end()) continue;
    const auto& [last, answered] = found->second;
    peer.silent = now - last > (answered ? limit : limit + kFirstBeat);
  }
}

const ControlLinks::Peer* ControlLinks::find(int32_t rank) const {
  const auto found = peers_.find(rank);
  return found == peers_.end() ? nullptr : &found->second;
}

bool ControlLinks::departed(int32_t rank) const {
  const std::lock_guard lock(mutex_);
  const Peer* peer = find(rank);
  return peer != nullptr && peer->departed;
}

std::string ControlLinks::failure(int32_t rank) const {
  const std::lock_guard lock(mutex_);
  const Peer* peer = find(rank);
  return peer != nullptr ? peer->failure : "";
}

bool ControlLinks::lost(int32_t rank) const {
  const std::lock_guard lock(mutex_);
  const Peer* peer = find(rank);
  if (peer == nullptr || peer->departed) return false;
  return rank == lost_ || peer->link->closed() || peer->violated || peer->silent;
}

bool ControlLinks::silent(int32_t rank) const {
  const std::lock_guard lock(mutex_);
  const Peer* peer = find(rank);
  return peer != nullptr && !peer->departed && peer->unanswered();
}

bool ControlLinks::expelled() const {
  const std::lock_guard lock(mutex_);
  return std::any_of(peers_.begin(), peers_.end(), [](const auto& each) { return each.second.expels; });
}

int ControlLinks::timeouts(int32_t rank) const {
  const std::lock_guard lock(mutex_);
  const Peer* peer = find(rank);
  return peer == nullptr ? 0 : peer->link->timeouts();
}

std::string ControlLinks::host(int32_t rank) const {
  const std::lock_guard lock(mutex_);
  const auto at = static_cast<size_t>(rank);
  return at < host_names_.size() ? " (host " + host_names_[at] + ")" : "";
}

std::string ControlLinks::reason(int32_t rank) const {
  const std::lock_guard lock(mutex_);
  const Peer* peer = find(rank);
  if (peer == nullptr) return "it is unknown";
  if (peer->violated) return "it sent an invalid message";
  const int error = peer->link->error();
  if (peer->unanswered()) return "its host has not answered for " + number_text(environment().host_timeout) + " s";
  if (error == 0 || error == ECONNRESET || error == EPIPE) return "its process has ended";
  return std::string("its host cannot be reached: ") + strerror(error);
}

}  // namespace pc
