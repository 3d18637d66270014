#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "link/ucx.h"

namespace pc {

namespace {

// Bytes sent that the peer may not have taken yet: less than the buffers of a socket hold, so that UCX keeps none back
// once this rank makes no progress, and the peer stores little.  What exceeds them is sent by rendezvous: its
// completion shows that the peer has placed all before it.
constexpr uint64_t kMostEager = 64 << 10;
constexpr uint64_t kEagerCost = 256;  // of a message without content

char no_content;  // of messages without bytes one is sent, since a rendezvous needs some

uint64_t wire_bytes(const MessageHeader& header) { return std::max<uint64_t>(1, header.bytes); }

bool equal(const UcxSecret& a, const UcxSecret& b) {  // in the same time, whatever differs
  unsigned difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= a[i] ^ b[i];
  return difference == 0;
}

ucx::RequestParams request_params(void* argument) {
  ucx::RequestParams params{};
  params.fields = ucx::kRequestCallback | ucx::kRequestArgument | ucx::kRequestMemory;
  params.memory_type = ucx::kHostMemory;
  params.argument = argument;
  return params;
}

}  // namespace

UcxLink::UcxLink(UcxWorker& worker, int32_t rank, const std::string& address, const UcxSecret& sends,
                 const UcxSecret& expects)
    : worker_(worker), id_(static_cast<unsigned>(rank)), sends_(sends), expects_(expects) {
  const auto& ucx = worker_.ucx_;
  ucx::EndpointParams params{};
  params.fields = ucx::kEndpointAddress | ucx::kEndpointErrorMode | ucx::kEndpointOnError;
  params.address = address.data();
  params.error_mode = worker_.shared_memory_ ? ucx::kNoErrors : ucx::kErrorsOfPeers;
  params.on_error = &on_error;
  params.argument = this;
  ucx.check(ucx.create_endpoint(worker_.worker_, &params, &endpoint_), "ucp_ep_create");
  const ucx::HandlerParams handler{ucx::kHandlerAll, id_, 0, &on_arrival, this};
  ucx.check(ucx.set_handler(worker_.worker_, &handler), "ucp_worker_set_am_recv_handler");
}

int UcxLink::descriptor() const { return worker_.descriptor_; }

short UcxLink::events(bool receives) const { return sends() || (receives && !stalled_) ? POLLIN : 0; }

bool UcxLink::arm() { return worker_.ucx_.arm(worker_.worker_) == ucx::kOk; }

void UcxLink::abandon() { worker_.close(); }

void UcxLink::fail(ucx::Status status) {
  const bool silent = status == ucx::kTimedOut || status == ucx::kEndpointTimeout;
  fail(status == ucx::kConnectionReset ? ECONNRESET : silent ? ETIMEDOUT : EIO);
}

void UcxLink::fail(int error) {
  if (!closed_) error_ = error;
  closed_ = true;
}

void UcxLink::on_error(void* link, ucx::Endpoint, ucx::Status status) { static_cast<UcxLink*>(link)->fail(status); }

// -- sending --------------------------------------------------------------------------------------------------------

uint64_t UcxLink::send(const MessageHeader& header, const void* data, bool) {
  const uint64_t cost = header.bytes + kEagerCost;
  const bool rendezvous = eager_ - confirmed_ + cost > kMostEager;
  waiting_.push_back({{sends_, numbered_++, header}, this, eager_, rendezvous, false});
  Outgoing& message = waiting_.back();
  if (!rendezvous) eager_ += cost;
  if (!closed_) {
    auto params = request_params(&message);
    params.fields |= ucx::kRequestFlags;
    params.flags = rendezvous ? ucx::kSendRendezvous : 0;
    params.callback.sent = &on_sent;
    completed(message,
              worker_.ucx_.send(endpoint_, static_cast<unsigned>(worker_.rank_), &message.wire, sizeof message.wire,
                                header.bytes > 0 ? data : &no_content, wire_bytes(header), &params));
  }
  return ++posted_;
}

void UcxLink::completed(Outgoing& message, ucx::Request request) {
  if (ucx::is_error(request)) return fail(ucx::error_of(request));
  if (request != nullptr) return;
  message.done = true;
  retire();
}

void UcxLink::on_sent(void* request, ucx::Status status, void* message) {
  auto& outgoing = *static_cast<Outgoing*>(message);
  UcxLink& link = *outgoing.link;
  link.worker_.ucx_.free_request(request);
  if (status != ucx::kOk) return link.fail(status);
  outgoing.done = true;
  link.retire();
}

void UcxLink::retire() {
  for (; !waiting_.empty() && waiting_.front().done; waiting_.pop_front(), ++sent_)
    if (waiting_.front().rendezvous) confirmed_ = waiting_.front().eager_before;
}

// -- receiving ------------------------------------------------------------------------------------------------------

bool UcxLink::progress(Inbox& inbox) {
  inbox_ = &inbox;
  const bool moved = deliver();
  return worker_.progress() || moved;
}

ucx::Status UcxLink::on_arrival(void* link, const void* header, size_t header_length, void* data, size_t length,
                                const ucx::ArrivalParams* params) {
  auto& self = *static_cast<UcxLink*>(link);
  Wire wire;
  if (self.worker_.closing_ || header_length != sizeof wire) return ucx::kOk;  // dropped
  memcpy(&wire, header, sizeof wire);
  if (!equal(wire.secret, self.expects_)) return ucx::kOk;
  return self.arrive(wire, data, length, params->flags);
}

ucx::Status UcxLink::arrive(const Wire& wire, void* data, size_t length, uint64_t flags) {
  if (wire.number < next_ || arrived_.contains(wire.number) || length != wire_bytes(wire.header)) {
    fail(EPROTO);
    return ucx::kOk;
  }
  const bool rendezvous = (flags & ucx::kArrivalRendezvous) != 0;
  if (!rendezvous && take(wire, data)) return ucx::kOk;
  Incoming& message = arrived_[wire.number];
  message = {wire.header, this, nullptr, {}, rendezvous, false};
  worker_.ready_.push_back(this);
  if (rendezvous || (flags & ucx::kArrivalKeepsData) != 0) {
    message.held = data;
    return ucx::kInProgress;
  }
  const char* const content = static_cast<const char*>(data);
  message.copy.assign(content, content + length);
  return ucx::kOk;
}

// A message that is the next one and has a place.
bool UcxLink::take(const Wire& wire, const void* data) {
  if (inbox_ == nullptr || wire.number != next_ || !arrived_.empty()) return false;
  char* const into = inbox_->place(wire.header);
  if (into == nullptr) return false;
  memcpy(into, data, wire.header.bytes);
  ++next_;
  inbox_->arrived(wire.header);
  return true;
}

// What follows an announcement is placed after that has been read.
bool UcxLink::may_place(const Incoming& message) const {
  const Incoming& first = arrived_.begin()->second;
  return &message == &first || (message.header.kind == MessageKind::data && first.header.kind == MessageKind::data);
}

bool UcxLink::deliver() {
  bool moved = report();
  stalled_ = false;
  while (inbox_ != nullptr && !worker_.closing_) {
    const auto found = arrived_.find(next_);
    if (found == arrived_.end() || !may_place(found->second)) break;
    char* const into = inbox_->place(found->second.header);
    stalled_ = into == nullptr;
    if (stalled_) break;
    ++next_;
    place(found->second, into);
    moved = true;
    report();
  }
  return moved;
}

void UcxLink::place(Incoming& message, char* into) {
  const auto& ucx = worker_.ucx_;
  if (message.rendezvous) {
    auto params = request_params(&message);
    params.callback.received = &on_received;
    char* const place = message.header.bytes > 0 ? into : &no_content;
    const ucx::Request request = ucx.receive(worker_.worker_, message.held, place, wire_bytes(message.header), &params);
    message.held = nullptr;
    if (ucx::is_error(request)) return fail(ucx::error_of(request));
    message.done = request == nullptr;
    return;
  }
  memcpy(into, message.held != nullptr ? message.held : message.copy.data(), message.header.bytes);
  if (message.held != nullptr) ucx.release(worker_.worker_, std::exchange(message.held, nullptr));
  message.done = true;
}

void UcxLink::on_received(void* request, ucx::Status status, size_t, void* message) {
  auto& incoming = *static_cast<Incoming*>(message);
  UcxLink& link = *incoming.link;
  link.worker_.ucx_.free_request(request);
  if (status != ucx::kOk) return link.fail(status);
  incoming.done = true;
  link.worker_.ready_.push_back(&link);
}

// In the order of sending; true if there are any.
bool UcxLink::report() {
  bool moved = false;
  while (inbox_ != nullptr && !arrived_.empty() && arrived_.begin()->second.done) {
    const MessageHeader header = arrived_.begin()->second.header;
    arrived_.erase(arrived_.begin());
    inbox_->arrived(header);
    moved = true;
  }
  return moved;
}

// -- closing --------------------------------------------------------------------------------------------------------

// Through shared memory a link ends by a flush only.  If there is something to be sent, it is left open: the worker
// then stays, without progress, so that it touches no buffer.
ucx::Request UcxLink::close() {
  const auto& ucx = worker_.ucx_;
  const bool idle = waiting_.empty() && arrived_.empty();
  for (auto& [number, message] : arrived_)
    if (message.held != nullptr) ucx.release(worker_.worker_, std::exchange(message.held, nullptr));
  fail(ECANCELED);
  ucx::RequestParams params{};
  params.fields = ucx::kRequestFlags;
  params.flags = worker_.shared_memory_ ? 0 : ucx::kCloseForced;
  if (worker_.shared_memory_ && !idle) worker_.abandoned_ = true;
  if (worker_.abandoned_) return nullptr;
  return ucx.close_endpoint(std::exchange(endpoint_, nullptr), &params);
}

}  // namespace pc
