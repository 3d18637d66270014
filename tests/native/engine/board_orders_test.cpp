// The engine's board: ranks are threads that announce the same operations, each in a different order.
#include <map>
#include <random>
#include <set>
#include <thread>

#include "boards.h"

namespace pc::test {

using namespace boards;

namespace {

// The batches that one rank fetched in a program of many rounds.
struct Log { std::vector<std::vector<std::string>> batches; };

// Units of a round: each is announced in one call.
using Units = std::vector<std::vector<Announcement>>;

// Runs a program on one rank.
class Player {
 public:
  Player(Board& board, uint32_t seed, Log& log) : board_(board), random_(seed), log_(log) {}

  // Announces the units in a rank-specific order and drives until all of them have completed.
  void round(const Units& units) {
    std::vector<size_t> order(units.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), random_);
    for (const size_t index : order) {
      std::vector<Announcement> unit = units[index];
      std::vector<Member> batch;
      const bool fetches = random_() % 2 == 0;
      announce(board_, unit, random_() % 4 == 0, fetches ? &batch : nullptr);
      for (const Announcement& a : unit) names_[a.hash.words[0]] = a.name;
      if (!batch.empty()) take(batch);
      while (random_() % 3 == 0) drive(false);
    }
    while (!names_.empty()) drive(true);
  }

  // Contributes nothing from here on, until all have joined; returns the last rank to join.
  int32_t join_all() {
    announce(board_, join());
    names_[engine::hash_of("join").words[0]] = "join";
    while (!names_.empty()) drive(true);
    return last_;
  }

 private:
  void drive(bool may_sleep) {
    const uint32_t seen = board_.news();
    const auto due = board_.cut();
    if (!board_.has_batch()) {  // a rank that is not woken sleeps until the test times out
      const auto limit = std::min(due, steady_clock::now() + std::chrono::seconds(30)) - steady_clock::now();
      if (may_sleep && limit.count() > 0) board_.sleep(seen, limit);
      return;
    }
    take(board_.fetch());
  }

  void take(const std::vector<Member>& batch) {
    log_.batches.emplace_back();
    for (const Member& member : batch) {
      const bool absent = member.details && member.details->lacks(board_.rank());
      const auto mine = absent ? names_.end() : names_.find(member.hash.words[0]);
      PC_CHECK(absent || mine != names_.end(), "a batch holds what this rank has not announced");
      PC_CHECK(!member.details || member.details->difference.empty(), member.details->difference);
      log_.batches.back().push_back(mine != names_.end() ? mine->second : member.details->name);
      if (mine == names_.end()) continue;
      if (mine->second == "join") last_ = member.details->last;
      names_.erase(mine);
    }
  }

  Board& board_;
  std::mt19937 random_;
  Log& log_;
  std::map<uint64_t, std::string> names_;  // by hash: operations in progress
  int32_t last_ = -1;
};

// Runs play(player, rank) on a thread per rank.
template <class Play>
std::vector<Log> on_ranks(World& world, const Play& play) {
  std::vector<Log> logs(world.boards.size());
  std::vector<std::thread> ranks;
  for (size_t r = 0; r < logs.size(); ++r)
    ranks.emplace_back([&, r] {
      Player player(world[r], static_cast<uint32_t>(r + 1), logs[r]);
      play(player, static_cast<int32_t>(r));
    });
  for (std::thread& rank : ranks) rank.join();
  return logs;
}

// Units of all kinds: single operations, and groups.
Units some_units() {
  Units units;
  for (int i = 0; i < 25; ++i) {
    const Dtype dtype = i % 5 == 0 ? Dtype::float64 : Dtype::float32;
    units.push_back({allreduce("single " + std::to_string(i), 1 + i * 3, dtype)});
    units.back()[0].priority = i % 3;
  }
  for (uint64_t g = 1; g <= 3; ++g) {
    units.emplace_back();
    for (int i = 0; i < 4; ++i) units.back().push_back(allreduce(text("group ", g, ".", i), 20, Dtype::float32, g));
  }
  for (int i = 0; i < 4; ++i) {
    Announcement a = allreduce("gather " + std::to_string(i));
    a.signature.kind = Kind::allgather;
    units.push_back({a});
  }
  return units;
}

std::map<std::string, Announcement> by_name(const Units& units) {
  std::map<std::string, Announcement> all;
  for (const auto& unit : units)
    for (const Announcement& a : unit) all[a.name] = a;
  return all;
}

}  // namespace

PC_TEST(board_same_batches_in_same_order_on_all_ranks) {
  const Units units = some_units();
  const auto all = by_name(units);
  constexpr int kRounds = 60;
  for (const int32_t size : {1, 2, 3, 5})
    for (const int64_t threshold : {int64_t{0}, int64_t{300}, int64_t{1} << 30}) {
      World world(size, threshold, 20e-6);
      const std::vector<Log> logs = on_ranks(world, [&](Player& player, int32_t) {
        for (int round = 0; round < kRounds; ++round) player.round(units);
      });
      for (const Log& log : logs) PC_CHECK(log.batches == logs[0].batches, size, " ranks, threshold ", threshold);
      std::map<std::string, int> times;
      for (const auto& batch : logs[0].batches) {
        int64_t bytes = 0;
        std::set<uint64_t> groups;  // a group is not split: only its first member must fit
        for (const std::string& name : batch) {
          const Announcement& a = all.at(name);
          ++times[name];
          if (a.signature.group == 0 || groups.insert(a.signature.group).second) bytes += a.bytes;
          const Signature& first = all.at(batch[0]).signature;
          PC_CHECK(batch.size() == 1 || first.fuses_with(a.signature), batch[0], " and ", name, " in one batch");
        }
        const bool one_only = batch.size() == 1 || (groups.size() == 1 && bytes == 80);
        PC_CHECK(one_only || bytes <= threshold, batch.size(), " operations of ", bytes);
      }
      PC_CHECK(times.size() == all.size(), "something never ran");
      for (const auto& [name, count] : times) PC_CHECK(count == kRounds, name, " ran ", count, " times");
    }
}

PC_TEST(board_many_names_through_few_slots) {
  World world(3, 1 << 20, 20e-6, 40);
  const std::vector<Log> logs = on_ranks(world, [](Player& player, int32_t) {
    for (int wave = 0; wave < 200; ++wave) {
      Units units;
      for (int i = 0; i < 12; ++i) units.push_back({allreduce(text("wave ", wave / 2, ".", i))});
      player.round(units);
    }
  });
  for (const Log& log : logs) PC_CHECK(log.batches == logs[0].batches, "");
}

// Ranks with fewer rounds than others; a rank that has joined may be far behind, so that a round is complete before it
// has fetched the previous one.
PC_TEST(board_uneven_work) {
  const Units units = some_units();
  size_t each = 0;
  for (const auto& unit : units) each += unit.size();
  World world(4, 300, 20e-6);
  constexpr int kTimes = 15;
  const std::vector<Log> logs = on_ranks(world, [&](Player& player, int32_t rank) {
    for (int time = 0; time < kTimes; ++time) {
      const int32_t first = time % 4;  // which rank has the most rounds rotates
      for (int32_t round = 0; round <= (rank + first) % 4 * 2; ++round) player.round(units);
      const int32_t last = player.join_all();
      PC_CHECK((last + first) % 4 == 3, "rank ", last, " joined last");
    }
  });
  size_t through = 0;
  for (const auto& batch : logs[0].batches) through += batch.size();
  PC_CHECK(through == kTimes * (7 * each + 1), through, " operations");
  for (const Log& log : logs) PC_CHECK(log.batches == logs[0].batches, "");
}

}  // namespace pc::test
