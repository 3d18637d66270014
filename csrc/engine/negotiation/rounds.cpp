#include "engine/negotiation/rounds.h"

#include <cstdio>
#include <iterator>

#include "engine/timeline.h"

namespace pc::engine {

Rounds::Rounds(int32_t rank, std::vector<int32_t> world_ranks, int64_t threshold, double cycle_seconds)
    : Carrier(rank, static_cast<int32_t>(world_ranks.size())),
      agreement_(std::move(world_ranks)),
      threshold_(threshold),
      cycle_seconds_(cycle_seconds) {
  if (rank < 0 || rank >= size_) throw InvalidArgument("rank " + std::to_string(rank) + " is not one of the engine's");
}

// -- the thread that exchanges messages ---------------------------------------------------------------------------

void Rounds::await_news(Limit limit) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, limit, [this] { return !outgoing_.empty(); });
}

void Rounds::await_caller(Limit limit) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, limit, [this] { return awaited(); });
}

bool Rounds::await_batches(Limit limit) {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, limit, [this] { return batches_.empty() && !running_; });
}

Rounds::News Rounds::take_news() {
  const std::lock_guard lock(mutex_);
  return std::exchange(outgoing_, {});
}

void Rounds::announced(int32_t rank, const Announcement& item) {
  const std::lock_guard lock(mutex_);
  agreement_.announce(rank, item);
}

void Rounds::refused(int32_t rank, const std::string& name, const std::string& why) {
  const std::lock_guard lock(mutex_);
  agreement_.refuse({rank, name, why});
}

void Rounds::tuned(int64_t threshold, double cycle_seconds) {
  const std::lock_guard lock(mutex_);
  threshold_ = threshold;
  cycle_seconds_ = cycle_seconds;
}

void Rounds::cut_all() {
  {
    const std::lock_guard lock(mutex_);
    auto batches = agreement_.cut(threshold_);
    if (batches.empty()) return;
    std::move(batches.begin(), batches.end(), std::back_inserter(batches_));
  }
  wake();
}

void Rounds::end(const CommunicatorFault& why) {
  {
    const std::lock_guard lock(mutex_);
    if (!end_) end_.emplace(why);
  }
  wake();
}

void Rounds::note_silence(std::vector<int32_t> ranks, int64_t since) {
  const std::lock_guard lock(mutex_);
  silent_ = std::move(ranks);
  silent_since_ = since;
}

int32_t Rounds::waiting() const {
  const std::lock_guard lock(mutex_);
  return agreement_.waiting();
}

// -- the engine ---------------------------------------------------------------------------------------------------

bool Rounds::announce(std::span<Announcement* const> items, bool, Limit, std::vector<Member>*) {
  {
    const std::lock_guard lock(mutex_);
    for (const Announcement* item : items) outgoing_.announced.push_back(encode(*item));
  }
  changed_.notify_all();
  return true;
}

bool Rounds::leave(bool regardless, Limit) {
  const std::lock_guard lock(mutex_);
  outgoing_.closing = true;
  changed_.notify_all();
  return batches_.empty() && (end_ || regardless);
}

std::vector<Member> Rounds::fetch(Limit) {
  const std::lock_guard lock(mutex_);
  if (batches_.empty()) return {};
  std::vector<Member> members = std::move(batches_.front());
  batches_.pop_front();
  running_ = true;
  return members;
}

bool Rounds::has_batch() const {
  const std::lock_guard lock(mutex_);
  if (batches_.empty() && end_) throw CommunicatorFault(*end_);
  return !batches_.empty();
}

void Rounds::complete_batch() {
  {
    const std::lock_guard lock(mutex_);
    running_ = false;
  }
  changed_.notify_all();
}

void Rounds::note_wait(bool begins) {
  awaiting_.fetch_add(begins ? 1 : -1, std::memory_order_relaxed);
  if (begins) changed_.notify_all();
}

void Rounds::sleep(uint32_t seen, std::chrono::nanoseconds limit) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, limit, [&] { return news() != seen; });
}

void Rounds::wake() {
  {
    const std::lock_guard lock(mutex_);
    news_.fetch_add(1, std::memory_order_release);
  }
  changed_.notify_all();
}

void Rounds::refuse(const std::string& name, const std::string& why, Limit) {
  {
    const std::lock_guard lock(mutex_);
    outgoing_.refused.emplace_back(name, why);
  }
  changed_.notify_all();
}

std::vector<Stall> Rounds::stalls(double seconds, bool all, Limit) {
  const std::lock_guard lock(mutex_);
  if (end_) return {};
  return agreement_.stalls(seconds, all ? -1 : rank_);
}

bool Rounds::end_all(const CommunicatorFault& why) {
  {
    const std::lock_guard lock(mutex_);
    if (!outgoing_.fault) outgoing_.fault.emplace(why);
  }
  changed_.notify_all();
  return true;
}

std::string Rounds::silence(double seconds) const {
  const std::lock_guard lock(mutex_);
  const double silent = static_cast<double>(Timeline::now() - silent_since_) * 1e-9;
  if (end_ || silent_.empty() || silent < seconds) return {};
  char text[64];
  std::snprintf(text, sizeof text, " %s not answered for %.1f s\n", silent_.size() == 1 ? "has" : "have", silent);
  return "  " + name_ranks(silent_, [this](int32_t rank) { return number(rank); }) + text;
}

void Rounds::tune(int64_t threshold, double cycle_seconds) {
  {
    const std::lock_guard lock(mutex_);
    outgoing_.tuned = {threshold, cycle_seconds};
  }
  changed_.notify_all();
}

int64_t Rounds::threshold() const {
  const std::lock_guard lock(mutex_);
  return threshold_;
}

double Rounds::cycle_seconds() const {
  const std::lock_guard lock(mutex_);
  return cycle_seconds_;
}

}  // namespace pc::engine
