// A carrier for ranks that share no memory: in rounds of messages, like Horovod's controller, all of them learn what
// each has submitted since the last one, and the agreement cuts the same batches on every rank.
//
// The messages are another thread's work (pycollective/engine/rounds.py).
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/negotiation/agreement.h"
#include "engine/negotiation/carrier.h"

namespace pc::engine {

class Rounds final : public Carrier {
 public:
  // What this rank tells the others in a round.
  struct News {
    std::vector<std::string> announced;  // encoded
    std::vector<std::pair<std::string, std::string>> refused;  // names, and why
    std::optional<std::pair<int64_t, double>> tuned;  // threshold in bytes, cycle in seconds
    std::optional<CommunicatorFault> fault;  // that ends the engine on all ranks
    bool closing = false;
    bool empty() const { return announced.empty() && refused.empty() && !tuned && !fault && !closing; }
  };

  // `world_ranks`: the ranks' numbers in the world.
  Rounds(int32_t rank, std::vector<int32_t> world_ranks, int64_t threshold, double cycle_seconds);

  // For the thread that exchanges messages.

  // Waits until this rank has news.
  void await_news(Limit limit);
  // Waits until a caller waits.
  void await_caller(Limit limit);
  // Waits until this rank has completed all batches: what is submitted meanwhile is announced, and fused, together.
  // False: not by `limit`.
  bool await_batches(Limit limit);
  News take_news();
  // Parts of a round: the same on all ranks, in the same order.  They throw InvalidArgument.
  void announced(int32_t rank, const Announcement& item);
  void refused(int32_t rank, const std::string& name, const std::string& why);
  void tuned(int64_t threshold, double cycle_seconds);
  void cut_all();
  // No rank submits anything more: what waits fails once the batches have run.
  void end(const CommunicatorFault& why);
  void note_silence(std::vector<int32_t> ranks, int64_t since);  // nanoseconds of the steady clock
  int32_t waiting() const;  // operations
  bool awaited() const { return awaiting_.load(std::memory_order_relaxed) > 0; }  // a caller waits
  std::string number(int32_t rank) const { return agreement_.number(rank); }

  bool announce(std::span<Announcement* const> items, bool urgent, Limit limit = kNoLimit,
                std::vector<Member>* fetched = nullptr) override;
  bool leave(bool regardless = false, Limit limit = kNoLimit) override;
  bool flush(int32_t, Limit = kNoLimit) override { return true; }  // nothing is held back
  std::vector<Member> fetch(Limit limit = kNoLimit) override;
  Limit cut(bool, Limit = kNoLimit, int32_t = -1, std::vector<Member>* = nullptr) override { return kNoLimit; }
  bool has_batch() const override;
  bool has_ready() const override { return false; }
  void note_wait(bool begins) override;
  void complete_batch() override;
  uint32_t news() const override { return news_.load(std::memory_order_acquire); }
  void sleep(uint32_t seen, std::chrono::nanoseconds limit) override;
  void wake() override;
  void refuse(const std::string& name, const std::string& why, Limit limit = kNoLimit) override;
  std::vector<Stall> stalls(double seconds, bool all, Limit limit = kNoLimit) override;
  bool end_all(const CommunicatorFault& why) override;
  std::string silence(double seconds) const override;
  void tune(int64_t threshold, double cycle_seconds) override;
  int64_t threshold() const override;
  double cycle_seconds() const override;

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<uint32_t> news_{0};
  std::atomic<int32_t> awaiting_{0};
  News outgoing_;
  Agreement agreement_;
  std::deque<std::vector<Member>> batches_;
  bool running_ = false;  // a batch was fetched, and is not complete
  std::optional<CommunicatorFault> end_;
  int64_t threshold_;
  double cycle_seconds_;
  std::vector<int32_t> silent_;
  int64_t silent_since_ = 0;
};

}  // namespace pc::engine
