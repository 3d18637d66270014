// Runs compiled schedules with ranks as threads, one call after another, and checks every result.
//
//   executor_test MODE SCHEDULES [ONLY [REPEATS]]
//
// run        Team::run, one lane per rank
// attempt    Team::attempt and, if that leaves the call pending, Team::run
// progress   calls passed to the progress thread, several per rank at a time
// lanes      four threads per rank
// unsynced   the same without the barrier between a step and its publication: a deliberate fault
//
// Between calls a rank overwrites its arrays at once: a peer that still reads them is a race.
#include <pthread.h>
#include <sched.h>

#include <functional>
#include <random>
#include <thread>
#include <utility>

#include "executor/cpu/group.h"
#include "progress/progress.h"
#include "rank.h"

namespace pc::test {
namespace {

constexpr int kLanes = 4;

void require(const std::string& problem) {
  if (!problem.empty()) give_up(problem);
}

struct Run {
  std::vector<Case> cases;
  int repeats = 1;
  World world;

  explicit Run(std::vector<Case> all, int repeats)
      : cases(std::move(all)), repeats(repeats), world(cases[0].size, array_bytes_for(cases)) {}
};

// Lets the ranks drift apart by occasional short sleeps.
class Drift {
 public:
  explicit Drift(int32_t rank) : random_(static_cast<uint32_t>(rank) + 1) {}
  void operator()() {
    switch (random_() % 16) {
      case 0: return std::this_thread::sleep_for(std::chrono::microseconds(random_() % 300));
      case 1:
      case 2: sched_yield();
    }
  }

 private:
  std::minstd_rand random_;
};

using CallBody = std::function<void(Rank&, Operation&)>;

void run_calls(const Run& run, Rank& rank, const CallBody& body) {
  Drift drift(rank.team.rank());
  for_each_case(run.cases, run.repeats, [&](const std::vector<CallPlan>& calls) {
    for (const CallPlan& call : calls) {
      Operation op = rank.prepare(call);
      drift();
      body(rank, op);
      require(rank.check(call));
    }
  });
}

void run_queued(const Run& run, std::shared_ptr<Rank> rank) {
  for_each_case(run.cases, run.repeats, [&](const std::vector<CallPlan>& calls) {
    std::vector<std::shared_ptr<Task>> tasks;
    for (size_t i = 0; i < calls.size(); ++i) {
      const std::shared_ptr<Team> team(rank, &rank->team);
      tasks.push_back(std::make_shared<Task>(team, rank->prepare(calls[i]), nullptr));
      Progress::instance().submit(tasks.back());
    }
    for (size_t i = 0; i < calls.size(); ++i) {
      tasks[i]->wait(-1);
      require(rank->check(calls[i]));
    }
  });
}

// The unmodified executor.
template <class Lanes>
using SoundGroup = CpuGroup<Lanes>;

// Several threads run one rank together, as the threads of a CUDA block do: a misplaced barrier in execute.h does not
// show with one lane.  std::barrier yields before it sleeps, which beside busy processes takes 100 times as long.
class SharedLanes {
 public:
  class State {
   public:
    explicit State(int lanes) : width(lanes) { pthread_barrier_init(&barrier_, nullptr, static_cast<unsigned>(lanes)); }
    ~State() { pthread_barrier_destroy(&barrier_); }
    State(const State&) = delete;
    State& operator=(const State&) = delete;
    void meet() { pthread_barrier_wait(&barrier_); }

    const int width;
    bool ok = true;

   private:
    pthread_barrier_t barrier_;
  };
  SharedLanes(State& state, int lane) : state_(&state), lane_(lane) {}
  int lane() const { return lane_; }
  int width() const { return state_->width; }
  bool all(bool ok) {
    if (lane_ == 0) state_->ok = ok;
    state_->meet();
    const bool result = state_->ok;
    state_->meet();
    return result;
  }

 private:
  State* state_;
  int lane_;
};

// The executor without a barrier: lane 0 may publish a step before the other lanes have done their shares.
template <class Lanes>
class UnsyncedGroup : public CpuGroup<Lanes> {
 public:
  using CpuGroup<Lanes>::CpuGroup;
  void combine(const Step& step, int64_t tile, uint32_t slot) {
    CpuGroup<Lanes>::combine(step, tile, slot);
    publishes_ = step.consumed();
  }
  bool all(bool ok) { return std::exchange(publishes_, false) ? ok : CpuGroup<Lanes>::all(ok); }

 private:
  bool publishes_ = false;
};

// A rank's lanes live as long as the run; lane 0 prepares and checks.
template <template <class> class Group>
void run_lanes(const Run& run, Rank& rank) {
  Operation op;
  SharedLanes::State state(kLanes);
  const auto lane = [&](int number) {
    Drift drift(rank.team.rank() * kLanes + number);
    for_each_case(run.cases, run.repeats, [&](const std::vector<CallPlan>& calls) {
      for (const CallPlan& call : calls) {
        if (number == 0) {
          op = rank.prepare(call);
          if (!rank.team.begin(op)) rank.team.raise();
        }
        state.meet();
        drift();
        Cursor cursor = op.cursor;
        Group<SharedLanes> group(rank.team, op, {state, number});
        if (execute(group, op.plan->schedule->view(), op.span, cursor) != Status::done) rank.team.raise();
        state.meet();
        if (number == 0) require(rank.check(call));
      }
    });
  };
  std::vector<std::thread> others;
  for (int i = 1; i < kLanes; ++i) others.emplace_back(lane, i);
  lane(0);
  for (std::thread& other : others) other.join();
}

void serve(const std::string& mode, const Run& run, const std::shared_ptr<Rank>& rank) {
  if (mode == "run") return run_calls(run, *rank, [](Rank& r, Operation& op) { r.team.run(op); });
  if (mode == "attempt")
    return run_calls(run, *rank, [](Rank& r, Operation& op) {
      if (r.team.attempt(op) == Status::pending) r.team.run(op);
    });
  if (mode == "progress") return run_queued(run, rank);
  if (mode == "lanes") return run_lanes<SoundGroup>(run, *rank);
  if (mode == "unsynced") return run_lanes<UnsyncedGroup>(run, *rank);
  give_up("unknown mode " + mode);
}

void run_all(const std::string& mode, const Run& run) {
  const bool threads = mode != "attempt";  // attempt() leaves a call to run() if ranks are threads
  std::vector<std::shared_ptr<Rank>> ranks;
  for (int32_t r = 0; r < run.world.size; ++r) {
    ranks.push_back(std::make_shared<Rank>(run.world, r, threads));
    // Every other rank sleeps at once, so that futexes are used too.
    ranks.back()->team.patience = {std::chrono::microseconds(threads ? 0 : 2),
                                   std::chrono::microseconds(r % 2 == 0 ? 50 : 0)};
  }
  std::vector<std::thread> threads_of_ranks;
  for (const auto& rank : ranks) {
    threads_of_ranks.emplace_back([&, rank] {
      try {
        serve(mode, run, rank);
      } catch (const std::exception& error) {
        give_up("rank " + std::to_string(rank->team.rank()) + ": " + error.what());
      }
    });
  }
  for (std::thread& thread : threads_of_ranks) thread.join();
}

}  // namespace
}  // namespace pc::test

int main(int argc, char** argv) {
  using namespace pc::test;
  return run_cases(argc, argv, [](const std::string& mode, std::vector<Case> cases, int repeats) {
    run_all(mode, Run(std::move(cases), repeats));
  });
}
