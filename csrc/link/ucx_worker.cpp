// All UCX links of a rank: how they are made, continue and end together.
#include <chrono>
#include <thread>
#include <utility>

#include "base/forks.h"
#include "base/signals.h"
#include "base/status.h"
#include "link/ucx.h"

namespace pc {
namespace {

using std::chrono::steady_clock;

constexpr int kMostTurns = 16;  // of UCX's progress in one of ours
constexpr auto kClosing = std::chrono::seconds(1);
constexpr auto kMeetingPause = std::chrono::microseconds(200);
constexpr int kGreetings = 2;

}  // namespace

UcxWorker::UcxWorker(std::shared_ptr<const ucx::Devices> devices, int32_t rank, bool shared_memory)
    : devices_(std::move(devices)),
      ucx_(devices_->library()),
      rank_(rank),
      shared_memory_(shared_memory),
      generation_(fork_generation()) {
  const WithoutSignals masked;  // UCX creates threads
  ucx::WorkerParams params{};
  params.fields = ucx::kWorkerThreadMode;
  params.thread_mode = ucx::kThreadsInTurn;
  ucx_.check(ucx_.create_worker(devices_->context(), &params, &worker_), "ucp_worker_create");
  const ucx::Status status = ucx_.get_descriptor(worker_, &descriptor_);
  if (status < 0) ucx_.destroy_worker(worker_);
  ucx_.check(status, "ucp_worker_get_efd");
}

UcxWorker::~UcxWorker() { close(); }

std::string UcxWorker::address() const {
  ucx::Address address = nullptr;
  size_t length = 0;
  ucx_.check(ucx_.get_address(worker_, &address, &length), "ucp_worker_get_address");
  std::string copy(static_cast<const char*>(address), length);
  ucx_.release_address(worker_, address);
  return copy;
}

void UcxWorker::connect(int32_t rank, const std::string& address, const UcxSecret& sends, const UcxSecret& expects) {
  const WithoutSignals masked;  // UCX creates threads
  Peer& peer = peers_[rank];
  if (peer.link != nullptr || rank < 0 || rank == rank_)
    throw InvalidArgument("rank " + std::to_string(rank) + " cannot be connected again, or with itself");
  peer.link = std::make_unique<UcxLink>(*this, rank, address, sends, expects);
}

bool UcxWorker::progress() {
  if (closing_) return false;
  bool moved = false;
  for (int turn = 0; turn < kMostTurns && ucx_.progress(worker_) > 0; ++turn) {
    moved = true;
    for (UcxLink* each : std::exchange(ready_, {})) each->deliver();
  }
  return moved;
}

char* UcxWorker::Greeting::place(const MessageHeader& header) {
  return header.kind == MessageKind::heartbeat && header.bytes == 0 ? &nothing : nullptr;
}

// One turn of `synchronize`.
std::vector<int32_t> UcxWorker::exchange_greetings() {
  std::vector<int32_t> missing;
  for (auto& [rank, peer] : peers_) {
    peer.link->progress(peer.greeting);
    if (peer.greeting.count < greetings_ || peer.link->sends()) missing.push_back(rank);
  }
  if (!missing.empty()) return missing;
  const bool last = greetings_ == kGreetings;
  greetings_ += last ? 0 : 1;
  for (auto& [rank, peer] : peers_) {
    if (last) {
      peer.link->detach();
    } else {
      peer.link->send({0, 0, 0, 0, 0, MessageKind::heartbeat, 0}, nullptr);
      missing.push_back(rank);
    }
  }
  return missing;
}

std::vector<int32_t> UcxWorker::synchronize(double seconds) {
  const auto end = steady_clock::now() + std::chrono::duration<double>(seconds);
  for (;;) {
    auto missing = exchange_greetings();
    if (missing.empty() || steady_clock::now() >= end) return missing;
    std::this_thread::sleep_for(kMeetingPause);
  }
}

std::shared_ptr<Link> UcxWorker::link(const std::shared_ptr<UcxWorker>& worker, int32_t rank) {
  const auto found = worker->peers_.find(rank);
  if (found == worker->peers_.end()) throw InvalidArgument("UCX is not connected with rank " + std::to_string(rank));
  return {worker, found->second.link.get()};
}

// A forked child leaves it alone: closing would end the parent's connections.
void UcxWorker::close() {
  if (closing_ || generation_ != fork_generation()) return;
  closing_ = true;
  std::vector<ucx::Request> closing;
  for (auto& [rank, peer] : peers_) {
    const ucx::Request request = peer.link != nullptr && peer.link->endpoint_ != nullptr ? peer.link->close() : nullptr;
    if (request != nullptr && !ucx::is_error(request)) closing.push_back(request);
  }
  const auto end = steady_clock::now() + kClosing;
  const auto finished = [&](ucx::Request request) {
    if (ucx_.status_of(request) == ucx::kInProgress) return false;
    ucx_.free_request(request);
    return true;
  };
  while (std::erase_if(closing, finished), !closing.empty() && !abandoned_ && steady_clock::now() < end)
    ucx_.progress(worker_);
  if (closing.empty() && !abandoned_) ucx_.destroy_worker(worker_);  // else it stays until the process ends
  worker_ = nullptr;
}

}  // namespace pc
