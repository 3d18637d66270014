// The engine's board: ranks are threads that announce the same operations in orders of their own.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <thread>

#include "base/status.h"
#include "check.h"
#include "engine/board.h"

namespace pc::test {
namespace {

using engine::Announcement;
using engine::Board;
using engine::Kind;
using engine::Member;
using engine::Signature;
using std::chrono::steady_clock;

constexpr int32_t kSlots = 64;

struct World {
  World(int32_t size, int64_t threshold, double cycle = 0, int32_t slots = kSlots) {
    const size_t bytes = (Board::bytes(size, slots) + 63) / 64 * 64;
    memory.reset(static_cast<char*>(std::aligned_alloc(64, bytes)), std::free);
    std::fill(memory.get(), memory.get() + bytes, '\0');
    for (int32_t r = 0; r < size; ++r) boards.push_back(std::make_unique<Board>(memory, memory.get(), r, size, slots));
    boards[0]->prepare();
    boards[0]->tune(threshold, cycle);
  }
  Board& operator[](size_t rank) { return *boards[rank]; }

  std::shared_ptr<char> memory;
  std::vector<std::unique_ptr<Board>> boards;
};

Announcement allreduce(const std::string& name, int64_t count = 4, Dtype dtype = Dtype::float32, uint64_t group = 0) {
  Announcement a;
  a.name = name;
  a.signature.kind = Kind::allreduce;
  a.signature.dtype = dtype;
  a.signature.dims = 1;
  a.signature.shape[0] = count;
  a.signature.group = group;
  a.bytes = count * 4;
  return a;
}

Announcement join() {
  Announcement a;
  a.name = "join";
  a.signature.kind = Kind::join;
  return a;
}

// Announces one operation; its slot.
int32_t announce(Board& board, Announcement a, bool urgent = false) {
  std::vector<Announcement> one{std::move(a)};
  board.announce(one, urgent);
  return one[0].slot;
}

// Everything that is cut now, without waiting for a cycle to pass.
std::vector<std::vector<Member>> fetch_all(Board& board) {
  std::vector<std::vector<Member>> batches;
  for (;;) {
    board.cut();
    if (!board.has_batch()) return batches;
    batches.push_back(board.fetch());
  }
}

// What one rank made of a program of many rounds.
struct Log { std::vector<std::vector<std::string>> batches; };

// Units of a round: each is announced at once.
using Units = std::vector<std::vector<Announcement>>;

// One rank's way through a program.
class Player {
 public:
  Player(Board& board, uint32_t seed, Log& log) : board_(board), random_(seed), log_(log) {}

  // Announces the units in an order of the rank's own and drives until all of them are through.
  void round(const Units& units) {
    std::vector<size_t> order(units.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), random_);
    for (const size_t index : order) {
      std::vector<Announcement> unit = units[index];
      board_.announce(unit, random_() % 4 == 0);
      for (const Announcement& a : unit) names_[a.slot] = a.name;
      while (random_() % 3 == 0) drive(false);
    }
    while (!names_.empty()) drive(true);
  }

  // Takes part with nothing from here on, until all have joined; the last to do so.
  int32_t join_all() {
    names_[announce(board_, join())] = "join";
    while (!names_.empty()) drive(true);
    return last_;
  }

 private:
  void drive(bool may_sleep) {
    const uint32_t seen = board_.news();
    const auto due = board_.cut();
    if (!board_.has_batch()) {  // whoever is not woken sleeps until the test's time is over
      const auto limit = std::min(due, steady_clock::now() + std::chrono::seconds(30)) - steady_clock::now();
      if (may_sleep && limit.count() > 0) board_.sleep(seen, limit);
      return;
    }
    log_.batches.emplace_back();
    for (const Member& member : board_.fetch()) {
      const bool absent = member.details && member.details->absent.has(board_.rank());
      const auto mine = absent ? names_.end() : names_.find(member.slot);
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
  std::map<int32_t, std::string> names_;  // by slot: what is under way
  int32_t last_ = -1;
};

// play(player, rank) on a thread for each rank.
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

// Units of all kinds: of one, and groups.
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
        std::set<uint64_t> groups;  // a group is not torn apart: its first member must fit, no more
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

// Ranks with fewer rounds than others; who has joined may be far behind, so that a round is complete before it has
// fetched the one before.
PC_TEST(board_uneven_work) {
  const Units units = some_units();
  size_t each = 0;
  for (const auto& unit : units) each += unit.size();
  World world(4, 300, 20e-6);
  constexpr int kTimes = 15;
  const std::vector<Log> logs = on_ranks(world, [&](Player& player, int32_t rank) {
    for (int time = 0; time < kTimes; ++time) {
      const int32_t first = time % 4;  // takes turns in having the most to do
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

PC_TEST(board_refuses_more_than_it_has_slots_for) {
  World world(2, 1 << 20, 0, 16);
  for (int i = 0; i < 16; ++i) announce(world[0], allreduce(std::to_string(i)));
  PC_CHECK_THROWS(InvalidArgument, announce(world[0], allreduce("one more")));
  for (int i = 0; i < 16; ++i) announce(world[1], allreduce(std::to_string(i)));
  size_t through = 0;
  for (const auto& batch : fetch_all(world[0])) through += batch.size();
  PC_CHECK(through == 16, through, " ran");
  fetch_all(world[1]);
  announce(world[0], allreduce("one more"));  // now there is room
  announce(world[1], allreduce("one more"));
  PC_CHECK(fetch_all(world[0]).size() == 1, "");
}

PC_TEST(board_mismatch_names_both_and_is_forgotten) {
  World world(3, 1 << 20);
  for (int round = 0; round < 3; ++round) {
    const bool odd = round == 1;
    for (int32_t r = 0; r < 3; ++r) announce(world[r], allreduce("grad", odd && r == 2 ? 5 : 4));
    for (int32_t r = 0; r < 3; ++r) {
      const auto batches = fetch_all(world[r]);
      PC_CHECK(batches.size() == 1 && batches[0].size() == 1, "round ", round);
      const auto& details = batches[0][0].details;
      PC_CHECK((details != nullptr) == odd, "round ", round);
      if (details == nullptr) continue;
      for (const char* part : {"grad", "rank 0", "rank 2", "(4,)", "(5,)"})
        PC_CHECK(details->difference.find(part) != std::string::npos, part, " in ", details->difference);
    }
  }
}

PC_TEST(board_mismatch_is_not_fused) {
  World world(2, 1 << 20, 1e3);
  for (int32_t r = 0; r < 2; ++r)
    for (int i = 0; i < 5; ++i) announce(world[r], allreduce(std::to_string(i), i == 2 ? 4 + r : 4));
  size_t alone = 0, total = 0;
  for (const auto& batch : fetch_all(world[0])) {
    total += batch.size();
    for (const Member& member : batch)
      if (member.details) alone += batch.size() == 1 && !member.details->difference.empty();
  }
  PC_CHECK(alone == 1, alone);
  PC_CHECK(total == 1 || total == 5, "the others may wait for their cycle: ", total);
}

PC_TEST(board_join_takes_part_with_nothing) {
  World world(3, 1 << 20);
  const int32_t early = announce(world[0], allreduce("early"));
  announce(world[1], join());
  PC_CHECK(fetch_all(world[1]).empty(), "nobody else is ready");
  announce(world[2], allreduce("early"));
  for (int32_t r = 0; r < 3; ++r) {
    const auto batches = fetch_all(world[r]);
    PC_CHECK(batches.size() == 1 && batches[0].size() == 1, "rank ", r);
    const Member& member = batches[0][0];
    PC_CHECK(member.slot == early && member.details != nullptr, "rank ", r);
    PC_CHECK(member.details->absent.has(1) && !member.details->absent.has(0) && !member.details->absent.has(2), r);
    PC_CHECK(member.details->name == "early" && member.details->signature.shape[0] == 4, r);
  }
  announce(world[2], join());
  announce(world[0], allreduce("late"));  // by itself: both others have joined
  PC_CHECK(fetch_all(world[0]).size() == 1, "");
  announce(world[0], join());
  for (int32_t r = 0; r < 3; ++r) {
    const auto batches = fetch_all(world[r]);
    PC_CHECK(!batches.empty(), "rank ", r);
    const Member& member = batches.back()[0];
    PC_CHECK(member.details != nullptr && member.details->signature.kind == Kind::join, "rank ", r);
    PC_CHECK(member.details->last == 0, "the last to join was ", member.details->last);
  }
  announce(world[0], allreduce("after"));
  announce(world[2], allreduce("after"));
  PC_CHECK(fetch_all(world[0]).empty(), "all take part again");
  announce(world[1], allreduce("after"));
  PC_CHECK(fetch_all(world[0]).size() == 1, "");
}

// What a rank has not fetched yet is not overwritten by the round after it, nor is its slot given to another name.
PC_TEST(board_waits_for_the_slowest_to_fetch) {
  World world(3, 1 << 20, 0, 2);
  announce(world[2], join());
  const auto round = [&](const std::string& name, int64_t count) {
    for (int32_t r = 0; r < 2; ++r) announce(world[r], allreduce(name, count));
  };
  const auto shape = [](const std::vector<std::vector<Member>>& batches) {
    return batches.size() == 1 && batches[0][0].details ? batches[0][0].details->signature.shape[0] : -1;
  };
  round("grad", 4);
  PC_CHECK(shape(fetch_all(world[0])) == 4 && shape(fetch_all(world[1])) == 4, "");
  PC_CHECK_THROWS(InvalidArgument, announce(world[0], allreduce("other")));
  round("grad", 5);
  PC_CHECK(fetch_all(world[0]).empty() && fetch_all(world[1]).empty(), "rank 2 has yet to fetch the one before");
  const auto first = world[2].fetch();
  PC_CHECK(first.size() == 1 && first[0].details && first[0].details->signature.shape[0] == 4, "");
  for (int32_t r = 0; r < 3; ++r) PC_CHECK(shape(fetch_all(world[r])) == 5, "rank ", r);
  announce(world[0], allreduce("other"));
}

PC_TEST(board_group_is_not_torn) {
  World world(2, 8);  // smaller than any member
  for (int32_t r = 0; r < 2; ++r) {
    std::vector<Announcement> unit;
    for (int i = 0; i < 5; ++i) unit.push_back(allreduce("member " + std::to_string(i), 4, Dtype::float32, 77));
    announce(world[r], allreduce("before"));
    world[r].announce(unit, false);
    announce(world[r], allreduce("after"));
  }
  std::vector<size_t> sizes;
  for (const auto& batch : fetch_all(world[0])) sizes.push_back(batch.size());
  PC_CHECK((sizes == std::vector<size_t>{1, 5, 1}), sizes.size(), " batches");
}

PC_TEST(board_most_needed_first) {
  World world(2, 0);
  std::map<int32_t, int32_t> priority;
  for (int32_t r = 0; r < 2; ++r) {
    std::vector<Announcement> unit;
    for (const int32_t p : {3, 1, 2, 0, 2}) {
      unit.push_back(allreduce("p" + std::to_string(unit.size())));
      unit.back().priority = p;
    }
    world[r].announce(unit, false);
    for (const Announcement& a : unit) priority[a.slot] = a.priority;
  }
  std::vector<int32_t> order;
  for (const auto& batch : fetch_all(world[1]))
    for (const Member& member : batch) order.push_back(priority[member.slot]);
  PC_CHECK((order == std::vector<int32_t>{0, 1, 2, 2, 3}), "");
}

PC_TEST(board_waits_for_its_cycle_unless_urged) {
  World world(2, 100, 1e6);
  const auto both = [&](const std::string& name, int64_t count) {
    announce(world[0], allreduce(name, count));
    return announce(world[1], allreduce(name, count));
  };
  const int32_t slot = both("small", 4);
  PC_CHECK(world[0].has_ready() && world[0].cut() > steady_clock::now(), "held back");
  PC_CHECK(!world[0].has_batch(), "held back");
  world[1].urge(slot);
  PC_CHECK(fetch_all(world[0]).size() == 1 && fetch_all(world[1]).size() == 1, "somebody waits");
  both("large", 100);
  PC_CHECK(fetch_all(world[0]).size() == 1 && fetch_all(world[1]).size() == 1, "as much as is fused at most");
  const int32_t urged_early = announce(world[0], allreduce("urged before the others come"));
  world[0].urge(urged_early);
  announce(world[1], allreduce("urged before the others come"));
  PC_CHECK(fetch_all(world[0]).size() == 1, "");
}

PC_TEST(board_place_is_told_where_all_agree) {
  World world(2, 1 << 20);
  for (const int64_t theirs : {int64_t{640}, int64_t{1280}}) {
    for (int32_t r = 0; r < 2; ++r) {
      Announcement a = allreduce("view");
      a.place = r == 0 ? 640 : theirs;
      announce(world[r], a);
    }
    for (int32_t r = 0; r < 2; ++r) {
      const auto batches = fetch_all(world[r]);
      PC_CHECK(batches.size() == 1 && batches[0][0].place == (theirs == 640 ? 640 : -1), "rank ", r);
    }
  }
}

PC_TEST(board_says_who_is_missing) {
  World world(4, 1 << 20);
  announce(world[1], allreduce("grad"));
  announce(world[3], allreduce("grad"));
  announce(world[2], join());
  for (int32_t r = 0; r < 4; ++r) {
    const auto mine = world[r].stalls(0, false), all = world[r].stalls(0, true);
    PC_CHECK(mine.size() == (r == 1 ? 1 : 0), "rank ", r, " reports ", mine.size());
    PC_CHECK(all.size() == 1 && all[0].name == "grad" && all[0].missing == std::vector<int32_t>{0}, "rank ", r);
  }
  PC_CHECK(world[1].stalls(1e6, true).empty(), "not for that long");
  announce(world[0], allreduce("grad"));
  PC_CHECK(world[1].stalls(0, true).empty(), "it is complete");
}

}  // namespace pc::test
