#include "executor/cpu/hosts/remotes.h"

#include <fcntl.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>

#include "base/status.h"
#include "link/tcp.h"
#include "link/ucx.h"

namespace pc {
namespace {

using std::chrono::milliseconds;

constexpr std::chrono::nanoseconds kLinkNap = std::chrono::microseconds(100);

}  // namespace

void Remotes::connect(int32_t size, const std::vector<int32_t>& here, const std::vector<Sockets>& others,
                      const std::shared_ptr<UcxWorker>& ucx) {
  sockets_ = others;
  if (others.empty()) return;
  all_.resize(static_cast<size_t>(size));
  control = std::make_shared<ControlLinks>();
  for (const Sockets& each : others) {
    std::shared_ptr<Link> data;
    if (ucx != nullptr) data = UcxWorker::link(ucx, each.rank);
    else data = std::make_shared<TcpLink>(each.data);
    auto link = std::make_unique<TcpLink>(each.control);
    messages_.push_back(std::make_unique<TcpLink>(each.messages));
    if (each.rank < 0 || each.rank >= size)
      throw InvalidArgument("rank " + std::to_string(each.rank) + " is not in a communicator of " +
                            std::to_string(size));
    if (at(each.rank) != nullptr || std::count(here.begin(), here.end(), each.rank) > 0)
      throw InvalidArgument("two connections to rank " + std::to_string(each.rank));
    all_[static_cast<size_t>(each.rank)] = std::make_shared<Remote>(std::move(data));
    control->add(each.rank, std::move(link));
  }
}

void Remotes::connect_pair(const Remotes& communicator, int32_t own, int32_t peer) {
  const auto& sockets = communicator.sockets_;
  const auto socket =
      std::find_if(sockets.begin(), sockets.end(), [&](const Sockets& each) { return each.rank == peer; });
  const int copy = fcntl(socket->messages, F_DUPFD_CLOEXEC, 0);
  if (copy < 0) throw SystemFailure(std::string("a channel cannot be made: ") + strerror(errno));
  all_.resize(2);
  all_[static_cast<size_t>(1 - own)] = std::make_shared<Remote>(std::make_shared<TcpLink>(copy, own == 1));
}

bool Remotes::pump() {
  bool busy = false;
  for (const auto& each : all_) {
    if (each == nullptr || !each->busy()) continue;
    each->progress();
    busy = busy || each->busy();
  }
  return busy;
}

bool Remotes::nap(int32_t peer, bool receives, milliseconds limit) {
  constexpr int kMost = 64;
  pollfd looks[kMost];
  nfds_t count = 0;
  for (int32_t i = -1; i < static_cast<int32_t>(all_.size()) && count < kMost; ++i) {
    const int32_t r = i < 0 ? peer : i;  // the peer first: there may be more links than are polled
    Remote* const each = at(r);
    if (each == nullptr || each->link().closed() || (i >= 0 && r == peer)) continue;
    Link& link = each->link();
    const short events = link.events(each->expects() || (receives && r == peer));
    const bool shared = count > 0 && looks[count - 1].fd == link.descriptor();  // links over UCX have one descriptor
    if (events == 0 || shared) continue;
    if (!link.arm()) return true;
    looks[count++] = {link.descriptor(), events, 0};
  }
  const bool here = at(peer) == nullptr;
  if (count == 0 && here) return false;
  const auto most = here ? kLinkNap : std::chrono::nanoseconds(limit);
  const timespec time{0, static_cast<long>(std::min<std::chrono::nanoseconds>(most, milliseconds(999)).count())};
  ppoll(looks, count, &time, nullptr);
  return true;
}

void Remotes::abandon() {
  for (const auto& each : all_)
    if (each != nullptr) each->link().abandon();
}

}  // namespace pc
