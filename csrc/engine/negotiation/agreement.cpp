#include "engine/negotiation/agreement.h"

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "engine/timeline.h"

namespace pc::engine {
namespace {

constexpr size_t kMostRefusals = 64;

}  // namespace

// The policy's view of the rounds.
struct Agreement::View {
  Agreement& agreement;
  void join(int32_t rank) { agreement.joined_.add(rank); }
  uint64_t number_of(const AnnouncedOperation* operation) const { return operation->round.number; }
  bool settle(AnnouncedOperation* operation) { return agreement.settle(*operation); }
  std::vector<AnnouncedOperation*> rounds() const {
    std::vector<AnnouncedOperation*> found;
    for (auto& [name, operation] : agreement.waiting_) found.push_back(&operation);
    return found;
  }
};

Agreement::Agreement(std::vector<int32_t> world_ranks)
    : world_ranks_(std::move(world_ranks)), joined_{std::vector<bool>(world_ranks_.size())} {}

void Agreement::announce(int32_t rank, const Announcement& item) {
  if (rank < 0 || rank >= size()) throw InvalidArgument("rank " + std::to_string(rank) + " is not one of the engine's");
  AnnouncedOperation& operation = waiting_[item.name];
  Round& round = operation.round;
  if (operation.details == nullptr) {
    operation.announced.bits.resize(world_ranks_.size());
    operation.details = std::make_unique<Details>();
    operation.details->name = item.name;
    operation.details->rows.resize(world_ranks_.size());
    round.begin(item, rank, false, rounds_++, Timeline::now());
  } else {
    if (operation.announced.has(rank)) throw InvalidArgument("'" + item.name + "' is announced twice");
    round.add(item, rank, false);
  }
  drop_refusals(rank, item.name);
  operation.announced.add(rank);
  operation.details->rows[static_cast<size_t>(rank)] = item.rows;
  View view{*this};
  engine::settle(view, item.signature.kind, rank, &operation);
}

void Agreement::drop_refusals(int32_t rank, std::string_view name) {
  std::erase_if(refusals_, [&](const Refusal& one) { return one.rank == rank && one.concerns(name); });
}

void Agreement::refuse(Refusal refusal) {
  drop_refusals(refusal.rank, refusal.name);
  if (refusals_.size() == kMostRefusals) refusals_.erase(refusals_.begin());
  refusals_.push_back(std::move(refusal));
}

bool Agreement::settle(AnnouncedOperation& operation) {
  Round& round = operation.round;
  const Kind kind = round.signature.kind;
  if (!is_complete(kind, operation.announced, joined_, size())) return false;
  round.ready = Timeline::now();
  Details& details = *operation.details;
  for (int32_t rank = 0; rank < size(); ++rank)
    if (!operation.announced.has(rank)) details.absent.push_back(rank);
  details.signature = round.signature;
  details.last = round.last;
  details.difference = round.difference(details.name, [this](int32_t rank) { return "rank " + number(rank); });
  if (kind == Kind::join) joined_ = {std::vector<bool>(world_ranks_.size())};
  ready_.push_back(std::move(waiting_.extract(details.name).mapped()));
  return true;
}

std::vector<Agreement::Batch> Agreement::cut(int64_t threshold) {
  std::vector<Batch> batches;
  while (!ready_.empty()) {
    std::vector<const Round*> rounds;
    for (const AnnouncedOperation& operation : ready_) rounds.push_back(&operation.round);
    Batch& batch = batches.emplace_back();
    for (const int32_t position : choose(rounds, threshold)) {
      auto& [round, announced, details] = ready_[static_cast<size_t>(position)];
      const NameHash hash = hash_of(details->name);
      batch.push_back({hash, round.place, round.since, round.ready, std::move(details)});
    }
    std::erase_if(ready_, [](const AnnouncedOperation& operation) { return operation.details == nullptr; });
  }
  return batches;
}

std::vector<Stall> Agreement::stalls(double seconds, int32_t reporter) const {
  std::vector<const AnnouncedOperation*> order;
  for (const auto& [name, operation] : waiting_) order.push_back(&operation);
  std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) { return a->round.number < b->round.number; });
  std::vector<Stall> all;
  const int64_t now = Timeline::now();
  for (const AnnouncedOperation* operation : order)
    all.push_back(stall_of(operation->details->name, operation->round, operation->announced, joined_, size(), now));
  return overdue(all, refusals_, seconds, reporter);
}

}  // namespace pc::engine
