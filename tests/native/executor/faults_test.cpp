// Conditions that end a call which cannot complete, and the ways in which ranks drift apart; ranks are threads.
// The environment variable PC_TEST_SCHEDULES names the folder that dump_schedules.py wrote.
#include <algorithm>
#include <cstdlib>
#include <functional>
#include <optional>
#include <thread>

#include "check.h"
#include "progress/progress.h"
#include "rank.h"

namespace pc::test {
namespace {

using std::chrono::milliseconds;

std::vector<Case> schedules(const std::string& file, const std::string& only) {
  use_small_tiles();
  const char* folder = std::getenv("PC_TEST_SCHEDULES");
  return read_cases(std::string(folder != nullptr ? folder : ".") + "/" + file, only);
}

// A communicator whose ranks are threads.
struct Ranks {
  explicit Ranks(const std::vector<Case>& cases) : world(cases[0].size, array_bytes_for(cases)) {
    for (int32_t r = 0; r < world.size; ++r) all.push_back(std::make_shared<Rank>(world, r));
  }
  // Runs body(rank) on a thread per rank; returns what each of them threw.
  std::vector<std::optional<CommunicatorFault>> run(const std::function<void(Rank&)>& body) {
    std::vector<std::optional<CommunicatorFault>> thrown(all.size());
    std::vector<std::thread> threads;
    for (size_t r = 0; r < all.size(); ++r)
      threads.emplace_back([&, r] {
        try {
          body(*all[r]);
        } catch (const CommunicatorFault& fault) {
          thrown[r] = fault;
        }
      });
    for (std::thread& thread : threads) thread.join();
    return thrown;
  }
  World world;
  std::vector<std::shared_ptr<Rank>> all;
};

void call(Rank& rank, const CallPlan& plan) {
  Operation op = rank.prepare(plan);
  rank.team.run(op);
  const std::string problem = rank.check(plan);
  PC_CHECK(problem.empty(), problem);
}

CallPlan plain(const Case& c, uint32_t number, int64_t longest = 100) {
  return {&c, Arithmetic::integers, longest, false, false, number};
}

bool mentions(const CommunicatorFault& fault, const std::string& part) {
  return std::string(fault.what()).find(part) != std::string::npos;
}

PC_TEST(faults_mismatch_is_raised_on_every_rank) {
  const auto cases = schedules("ranks-3.txt", "-allreduce-STAGED");
  for (const Case& c : cases) {
    Ranks ranks(cases);
    const auto thrown = ranks.run([&](Rank& rank) {
      const bool odd = rank.team.rank() == 1;
      for (uint32_t i = 0; i < 3; ++i) call(rank, plain(c, i));
      for (uint32_t i = 3; i < 6; ++i) {  // a rank that has already completed raises in a later call
        Operation op = rank.prepare(plain(c, i, odd ? 90 : 100));
        op.timeout = std::chrono::seconds(20);
        rank.team.run(op);
      }
    });
    const std::string counts[] = {text("count=", 100 * c.chunks() - 5), text("count=", 90 * c.chunks() - 5)};
    for (const auto& fault : thrown) {
      PC_CHECK(fault.has_value(), c.name, ": a rank raised nothing");
      if (!fault) continue;
      PC_CHECK(fault->fault == Fault::mismatch, c.name, ": ", fault->what());
      PC_CHECK(mentions(*fault, counts[0]) && mentions(*fault, counts[1]), c.name, ": ", fault->what());
    }
  }
}

// Advances each rank's call in turn, on this thread, until those of `awaited` have completed.
void advance(Ranks& ranks, std::vector<Operation>& calls, std::vector<bool>& done,
             const std::vector<int32_t>& awaited) {
  const auto completed = [&](int32_t r) { return done[static_cast<size_t>(r)]; };
  for (int turn = 0; turn < 100'000 && !std::all_of(awaited.begin(), awaited.end(), completed); ++turn) {
    const auto r = static_cast<size_t>(turn) % calls.size();
    if (!done[r]) done[r] = ranks.all[r]->team.advance(calls[r]) == Status::done;
  }
}

// A rank may be in a call that has all it needs while another rank, which has completed it, gives up the next one.
PC_TEST(faults_leave_the_calls_before_them) {
  int behind = 0;  // how often a rank had yet to complete the first call
  for (const char* file : {"ranks-2.txt", "ranks-3.txt", "ranks-5.txt"}) {
    const auto cases = schedules(file, "");
    for (const Case& c : cases) {
      for (int32_t first = 0; first < c.size; ++first) {
        Ranks ranks({c});
        const CallPlan plan = plain(c, 0);
        std::vector<Operation> calls;
        for (const auto& rank : ranks.all) calls.push_back(rank->prepare(plan));
        std::vector<bool> done(calls.size(), false);
        advance(ranks, calls, done, {first});
        behind += static_cast<int>(std::count(done.begin(), done.end(), false));
        for (auto& rank : ranks.all) {
          if (!done[static_cast<size_t>(rank->team.rank())]) continue;
          Operation next = rank->prepare(plain(c, 1));
          next.timeout = std::chrono::seconds(-1);
          try {
            while (rank->team.advance(next) != Status::done) {
            }  // a call that waits for nothing
          } catch (const CommunicatorFault&) {
          }
        }
        try {
          advance(ranks, calls, done, Team::all_of(c.size));
        } catch (const CommunicatorFault& fault) {
          PC_CHECK(false, c.name, ", first rank ", first, ": ", fault.what());
          continue;
        }
        for (const auto& rank : ranks.all) {
          const std::string problem = rank->check(plan);
          PC_CHECK(problem.empty(), problem);
        }
      }
    }
  }
  PC_CHECK(behind > 100, behind, " ranks were behind");
}

PC_TEST(faults_dropped_window_is_an_error_not_a_crash) {
  const auto cases = schedules("ranks-2.txt", "direct-allreduce-WINDOW-");
  Ranks ranks(cases);
  ranks.all[0]->team.remove_window(1);
  const auto thrown = ranks.run([&](Rank& rank) {
    Operation op = rank.prepare(plain(cases[0], 0));
    if (rank.team.rank() == 0) op.output_at = {0, 0};  // its own array is in the window that it has kept
    rank.team.run(op);
  });
  for (const auto& fault : thrown)
    PC_CHECK(fault && mentions(*fault, "window"), fault ? fault->what() : "nothing was raised");
}

void add_slowly(void* into, const void* from, int64_t count) {
  std::this_thread::sleep_for(milliseconds(30));
  for (int64_t i = 0; i < count; ++i) static_cast<int32_t*>(into)[i] += static_cast<const int32_t*>(from)[i];
}

// A chain of broadcasts lets the first rank run several calls ahead of the last, which still reads earlier data.
PC_TEST(faults_none_when_a_rank_is_calls_ahead) {
  const auto sums = schedules("ranks-5.txt", "direct-allreduce-small-STAGED");
  const auto chains = schedules("ranks-5.txt", "ring-broadcast-STAGED-0");
  std::vector<Case> both = sums;
  both.insert(both.end(), chains.begin(), chains.end());
  Ranks ranks(both);
  const auto thrown = ranks.run([&](Rank& rank) {
    for (uint32_t round = 0; round < 3; ++round) {
      CallPlan sum{&sums[0], Arithmetic::custom, 100, false, false, 100 * round};
      Operation op = rank.prepare(sum);
      auto plan = std::make_shared<Plan>(*op.plan);
      if (rank.team.rank() == 4) plan->custom = add_slowly;
      op.plan = plan;
      rank.team.run(op);
      const std::string problem = rank.check(sum);
      PC_CHECK(problem.empty(), problem);
      for (uint32_t i = 1; i < 25; ++i) call(rank, plain(chains[0], 100 * round + i, 20));
    }
  });
  for (const auto& fault : thrown) PC_CHECK(!fault, fault->what());
}

// Every ordered pair has its own channel; a message may wait in it for its receiver.
PC_TEST(faults_none_in_messages_between_pairs) {
  constexpr int32_t n = 3;
  constexpr uint32_t kMessages = 40;
  const auto sends = schedules("sends.txt", "");
  const auto find = [&](const char* name) { return sends[sends[0].name == name ? 0 : 1]; };
  const Case eager = find("eager"), rendezvous = find("rendezvous");
  auto cases = schedules("ranks-3.txt", "direct-allreduce-STAGED");
  Ranks ranks(cases);
  const auto message = [](const Case& c, Team& team, std::vector<int32_t>& data) {
    auto plan = std::make_shared<Plan>();
    plan->schedule = c.ranks[team.rank()];
    plan->layout = Layout::split(static_cast<int64_t>(data.size()), c.chunks(), 16);
    plan->fingerprint.collective = Collective::send;
    plan->fingerprint.count = static_cast<int64_t>(data.size());
    plan->fingerprint.dtype = Dtype::int32;
    plan->element = 4;
    plan->finish(team.capacity());
    Operation op;
    op.plan = plan;
    op.input = op.output = data.data();
    op.timeout = std::chrono::seconds(60);
    team.run(op);
  };
  const auto thrown = ranks.run([&](Rank& rank) {
    const int32_t me = rank.team.rank(), next = (me + 1) % n, before = (me + n - 1) % n;
    Team out(rank.team, me, next), in(rank.team, before, me);
    for (uint32_t i = 0; i < kMessages; ++i) {
      const auto length = static_cast<size_t>(1 + i % 5 * 7);
      std::vector<int32_t> sent(length, static_cast<int32_t>(1000 * i) + me), received(length);
      message(eager, out, sent);
      std::fill(sent.begin(), sent.end(), -1);
      message(eager, in, received);
      for (const int32_t v : received) PC_CHECK(v == static_cast<int32_t>(1000 * i) + before, "message ", i, " is ", v);
    }
    std::vector<int32_t> large(500, me == 0 ? 7 : 0);  // several tiles, passed around the ring from rank 0
    if (me != 0) message(rendezvous, in, large);
    message(rendezvous, out, large);
    if (me == 0) message(rendezvous, in, large);
    for (const int32_t v : large) PC_CHECK(v == 7, "the long message is ", v);
  });
  for (const auto& fault : thrown) PC_CHECK(!fault, fault->what());
}

PC_TEST(faults_reach_the_handle_of_a_queued_call) {
  const auto cases = schedules("ranks-2.txt", "ring-allreduce-STAGED");
  Ranks ranks(cases);
  const auto thrown = ranks.run([&](Rank& rank) {
    Operation op = rank.prepare(plain(cases[0], 0));
    op.timeout = milliseconds(100);
    const std::shared_ptr<Team> team(ranks.all[rank.team.rank()], &rank.team);
    if (rank.team.rank() == 1) return;
    const auto task = std::make_shared<Task>(team, std::move(op), nullptr);
    Progress::instance().submit(task);
    PC_CHECK(!task->wait(0.001), "it cannot be done yet");
    task->wait(-1);
  });
  PC_CHECK(thrown[0] && thrown[0]->fault == Fault::timeout && thrown[0]->culprit == 1, "rank 0");
}

}  // namespace
}  // namespace pc::test
