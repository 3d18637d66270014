#include "engine/negotiation/policy.h"

#include <cstdio>
#include <map>
#include <unordered_map>
#include <utility>

namespace pc::engine {
namespace {

constexpr size_t kMostNamed = 8;  // ranks listed in one line

// Positions in `ready`, most urgent first; ties in order of completion.
std::vector<int32_t> by_urgency(std::span<const Round* const> ready) {
  std::vector<int32_t> order(ready.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  const auto rank_of = [&](int32_t position) {
    const Round& round = *ready[static_cast<size_t>(position)];
    return std::pair(round.signature.kind == Kind::join, round.priority);
  };
  const auto before = [&](int32_t a, int32_t b) { return rank_of(a) < rank_of(b); };
  if (!std::is_sorted(order.begin(), order.end(), before)) std::stable_sort(order.begin(), order.end(), before);
  return order;
}

// Members of a group move up to their first one.
void gather_groups(std::vector<int32_t>& order, std::span<const Round* const> ready) {
  const auto group_of = [&](int32_t position) { return ready[static_cast<size_t>(position)]->signature.group; };
  const bool one =
      std::all_of(order.begin(), order.end(), [&](int32_t p) { return group_of(p) == group_of(order[0]); });
  if (one) return;
  std::unordered_map<uint64_t, size_t> first;
  std::vector<std::pair<size_t, int32_t>> places;
  for (size_t i = 0; i < order.size(); ++i) {
    const uint64_t group = group_of(order[i]);
    places.emplace_back(group == 0 ? i : first.try_emplace(group, i).first->second, order[i]);
  }
  if (first.empty()) return;
  std::stable_sort(places.begin(), places.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::transform(places.begin(), places.end(), order.begin(), [](const auto& place) { return place.second; });
}

// The operation with which `rank` waits for one of the ranks that wait for it, if there is one.  `own`: those of its.
void add_crossing(Stall& stall, int32_t rank, const std::vector<const Stall*>& own) {
  for (const Stall* other : own) {
    const auto awaited =
        std::find_first_of(other->missing.begin(), other->missing.end(), stall.waiting.begin(), stall.waiting.end());
    if (awaited == other->missing.end()) continue;
    stall.crossings.push_back({rank, *awaited, other->name});
    return;
  }
}

}  // namespace

void Round::begin(const Announcement& item, int32_t rank, bool wanted, uint64_t count, int64_t now) {
  // Usually that of the previous round: the other ranks then have it in their caches, if it is not written again.
  if (!(signature == item.signature)) signature = item.signature;  // `theirs` and `other`: only if ranks differ
  differs = false;
  first = last = rank;
  priority = item.priority;
  bytes = item.bytes;
  place = item.place;
  number = count;
  since = now;
  urgent = wanted;
}

void Round::add(const Announcement& item, int32_t rank, bool wanted) {
  const bool same = signature == item.signature;
  if (rank < first) {
    if (!same) {
      theirs = std::exchange(signature, item.signature);
      other = first;
      bytes = item.bytes;
    }
    first = rank;
  } else if (!same && (!differs || rank < other)) {
    theirs = item.signature;
    other = rank;
  }
  differs = differs || !same;
  priority = std::min(priority, item.priority);
  if (place != item.place) place = -1;
  urgent = urgent || wanted;
  last = rank;
}

std::string Round::difference(const std::string& name, const Labels& label) const {
  if (!differs) return {};
  return "operation '" + name + "' differs between ranks: " + label(first) + " submits " + signature.describe() + "; " +
         label(other) + " submits " + theirs.describe();
}

void Backlog::add(const Round& round, bool first) {
  if (first) *this = {round.ready, 0, false};
  bytes += round.bytes;
  urgent = urgent || round.runs_at_once();
}

int64_t Backlog::due(int64_t threshold, double cycle_seconds) const {
  return urgent || bytes >= threshold ? 0 : since + static_cast<int64_t>(cycle_seconds * 1e9);
}

std::vector<int32_t> choose(std::span<const Round* const> ready, int64_t threshold) {
  if (ready.size() == 1) return {0};
  std::vector<int32_t> order = by_urgency(ready);
  const auto at = [&](int32_t position) -> const Round& { return *ready[static_cast<size_t>(position)]; };
  const Round& head = at(order[0]);
  std::erase_if(order, [&](int32_t position) {
    const Round& round = at(position);
    return &round != &head && (head.differs || round.differs || !head.signature.fuses_with(round.signature));
  });
  gather_groups(order, ready);
  int64_t bytes = head.bytes;
  size_t count = 1;
  for (; count < order.size(); ++count) {
    const Round& next = at(order[count]);
    const uint64_t group = next.signature.group;
    const bool together = group != 0 && group == at(order[count - 1]).signature.group;
    if (!together && bytes + next.bytes > threshold) break;
    bytes += next.bytes;
  }
  order.resize(count);
  return order;
}

bool Refusal::concerns(std::string_view operation) const {
  if (!operation.starts_with(name)) return false;
  operation.remove_prefix(name.size());
  return operation.empty() || (operation.size() > 1 && operation[0] == '.' &&
                               operation.find_first_not_of("0123456789", 1) == std::string_view::npos);
}

std::vector<Stall> overdue(const std::vector<Stall>& all, std::span<const Refusal> refusals, double seconds,
                           int32_t reporter) {
  std::map<int32_t, std::vector<const Stall*>> own;  // of each rank that has submitted something
  for (const Stall& stall : all)
    for (const int32_t rank : stall.waiting)
      if (!stall.missing.empty()) own[rank].push_back(&stall);
  std::vector<Stall> found;
  for (const Stall& stall : all) {
    if (stall.waiting.empty() || stall.missing.empty() || stall.seconds < seconds) continue;
    if (reporter >= 0 && stall.waiting.front() != reporter) continue;
    found.push_back(stall);
    for (const Refusal& refusal : refusals)
      if (std::count(stall.missing.begin(), stall.missing.end(), refusal.rank) > 0 && refusal.concerns(stall.name))
        found.back().refusals.push_back(refusal);
    for (size_t i = 0; i < std::min(stall.missing.size(), kMostNamed); ++i)
      if (const auto waits = own.find(stall.missing[i]); waits != own.end())
        add_crossing(found.back(), stall.missing[i], waits->second);
  }
  return found;
}

std::string name_ranks(std::span<const int32_t> ranks, const Labels& number) {
  std::string text = ranks.size() > 1 ? "ranks" : "rank";
  for (size_t i = 0; i < std::min(ranks.size(), kMostNamed); ++i) text += (i > 0 ? ", " : " ") + number(ranks[i]);
  return text + (ranks.size() > kMostNamed ? ", ... (" + std::to_string(ranks.size()) + " of them)" : "");
}

std::string list(const std::vector<Stall>& stalls, const Labels& number) {
  std::string text;
  for (const Stall& stall : stalls) {
    char seconds[32];
    std::snprintf(seconds, sizeof seconds, "%.1f", stall.seconds);
    text += "  '" + stall.name + "' has waited " + seconds + " s for " + name_ranks(stall.missing, number);
    for (const auto& [missing, waiting, name] : stall.crossings)
      text += "; rank " + number(missing) + " has submitted '" + name + "', which waits for rank " + number(waiting);
    for (const auto& [rank, name, why] : stall.refusals)
      text += "; rank " + number(rank) + "'s submission was refused: " + why;
    text += "\n";
  }
  return text;
}

}  // namespace pc::engine
