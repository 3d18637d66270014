// The engine with ranks as threads: each has the engine's thread and two that submit and wait.
// The environment variable PC_TEST_SCHEDULES names the folder that dump_schedules.py wrote.
#include "engine/engine.h"

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <random>
#include <thread>
#include <utility>

#include "base/status.h"
#include "cases.h"
#include "check.h"
#include "rank.h"

namespace pc::test {
namespace {

using engine::Announcement;
using engine::Board;
using engine::Details;
using engine::Engine;
using engine::Kind;
using engine::Member;
using engine::Pending;
using engine::Pendings;
using engine::Reduction;

constexpr int64_t kScratch = 1 << 16;
constexpr int64_t kBuffer = 1 << 12;  // bytes, for two tiles: longer operations take several
constexpr int64_t kView = 1 << 14;    // bytes of each rank's window for arrays that are reduced in place
constexpr int32_t kSlots = 256;
constexpr auto kLong = std::chrono::seconds(60);

// The default topology for three ranks, for private arrays or for windows.
const Case& direct(bool in_windows) {
  static const auto read = [](const char* placement) {
    const char* folder = std::getenv("PC_TEST_SCHEDULES");
    const std::string file = std::string(folder != nullptr ? folder : ".") + "/ranks-3.txt";
    return read_cases(file, std::string("direct-allreduce-") + placement);
  };
  static const std::vector<Case> staged = read("STAGED"), windows = read("INPLACE");
  return in_windows ? windows[0] : staged[0];
}

struct Idle : engine::Runner {
  void run(const Pendings&, const std::vector<Member>& members) override {
    PC_CHECK(members[0].details->signature.kind == Kind::barrier, "nothing else is expected here");
    if (before) before(members[0].details->name);
  }
  void finished(const std::vector<std::shared_ptr<void>>&) override {}

  std::function<void(const std::string& name)> before;  // set before the first submit
};

// State shared by the ranks of one engine.
struct Shared {
  static constexpr int32_t kSize = 3;
  explicit Shared(int32_t slots_of_board)
      : slots(slots_of_board),
        control(create_segment("local", Team::segment_bytes(kSize, kScratch))),
        windows(create_segment("local", kSize * (kBuffer + kView))),
        board(create_segment("local", Board::bytes(kSize, slots))) {
    Board(board, board->data(), 0, kSize, slots).prepare();
  }
  int32_t slots;
  std::shared_ptr<Segment> control, windows, board;
};

class Driver {
 public:
  Driver(const Shared& world, int32_t rank) : rank_(rank) {
    const std::vector<int32_t> ranks = Team::all_of(Shared::kSize);
    team_ = std::make_shared<Team>(world.control, rank, Shared::kSize, kScratch, ranks, "engine", true, ranks,
                                   std::vector<Sockets>());
    team_->add_window(0, {world.windows->data(), kBuffer, kBuffer});
    char* views = world.windows->data() + Shared::kSize * kBuffer;
    team_->add_window(1, {views, kView, kView});
    view_ = reinterpret_cast<float*>(views + rank * kView);
    auto board = std::make_shared<Board>(world.board, world.board->data(), rank, Shared::kSize, world.slots);
    const auto maker = [this](const Reduction& r, int64_t count, bool in_windows) {
      return plan(r, count, in_windows);
    };
    engine_ = std::make_unique<Engine>(team_, std::move(board), maker, world.windows->data() + rank * kBuffer, kBuffer,
                                       2, engine::StallSettings{}, runner);
    loop_ = std::thread([this] { engine_->loop(); });
  }
  ~Driver() { leave(); }

  void close() {
    if (!std::exchange(closed_, true)) engine_->close();
  }
  // Acts as a rank that frees its engine's communicator.
  void leave() {
    close();
    if (loop_.joinable()) loop_.join();
    team_->depart();
  }
  Engine* operator->() { return engine_.get(); }
  int32_t number() const { return rank_; }
  float* view() { return view_; }
  const std::shared_ptr<Idle> runner = std::make_shared<Idle>();
  // The place of an array in this rank's window.
  int64_t place_of(const float* array) { return kBuffer * Shared::kSize + (array - view_) * 4; }

 private:
  std::shared_ptr<const Plan> plan(const Reduction& r, int64_t count, bool in_windows) const {
    const Case& c = direct(in_windows);
    auto plan = std::make_shared<Plan>();
    plan->schedule = c.ranks[static_cast<size_t>(rank_)];
    plan->layout = Layout::split(count, c.chunks(), 16);
    plan->fingerprint.count = count;
    plan->fingerprint.collective = Collective::allreduce;
    plan->fingerprint.dtype = r.dtype;
    plan->fingerprint.placement = c.placement;
    plan->element = size_of(r.dtype);
    plan->kernel = kernel_for(r.dtype, r.op);
    plan->finish(team_->capacity(), team_->tile_bytes);
    return plan;
  }

  int32_t rank_;
  std::shared_ptr<Team> team_;
  float* view_;
  std::unique_ptr<Engine> engine_;
  std::thread loop_;
  bool closed_ = false;
};

// One rank's allreduce of `count` floats, in place.
struct Sum {
  std::string name;
  std::vector<float> mine;
  float* at;
  int64_t count, place = -1;
  std::shared_ptr<Pending> pending;

  Sum(std::string text, int64_t length) : name(std::move(text)), mine(length), at(mine.data()), count(length) {}
  Sum(std::string text, Driver& rank, int64_t begin, int64_t length)
      : name(std::move(text)), at(rank.view() + begin), count(length), place(rank.place_of(at)) {}

  std::shared_ptr<Pending> make(float value) {
    std::fill_n(at, count, value);
    Announcement a;
    a.name = name;
    a.signature.kind = Kind::allreduce;
    a.signature.dtype = Dtype::float32;
    a.signature.dims = 1;
    a.signature.shape[0] = count;
    a.bytes = count * 4;
    a.place = place;
    auto* data = reinterpret_cast<char*>(at);
    return pending = std::make_shared<Pending>(a, data, data, nullptr);
  }
  bool is(float value) const {
    return std::all_of(at, at + count, [value](float x) { return x == value; });
  }
};

std::shared_ptr<Pending> plain(Kind kind, const std::string& name) {
  Announcement a;
  a.name = name;
  a.signature.kind = kind;
  return std::make_shared<Pending>(a, nullptr, nullptr, nullptr);
}

// Runs body(rank) on a thread per rank; engines are closed when all have completed.
void on_ranks(const std::function<void(Driver&)>& body, int32_t slots = kSlots) {
  use_small_tiles();
  const Shared world(slots);
  std::vector<std::unique_ptr<Driver>> ranks;
  for (int32_t r = 0; r < Shared::kSize; ++r) ranks.push_back(std::make_unique<Driver>(world, r));
  std::vector<std::thread> threads;
  for (auto& rank : ranks) threads.emplace_back([&body, &rank] { body(*rank); });
  for (std::thread& thread : threads) thread.join();
}

void await(Driver& rank, const std::shared_ptr<Pending>& operation) {
  PC_CHECK(rank->wait(operation, Clock::now() + kLong), operation->name(), " has not completed");
  PC_CHECK(!operation->fault(), operation->name(), ": ", operation->fault()->what());
}

// One of a rank's submitting threads: sums with its own names, in its own order, some in windows.
void submit_and_wait(Driver& rank, int lane, int rounds) {
  std::mt19937 random(static_cast<uint32_t>(10 * rank.number() + lane));
  std::vector<Sum> sums;
  for (int i = 0; i < 12; ++i) sums.emplace_back(text("lane ", lane, ".", i), 1 + i * i * 17);
  for (int i = 0; i < 4; ++i) sums.emplace_back(text("lane ", lane, " view ", i), rank, lane * 1000 + i * 100, 90 + i);
  for (int round = 0; round < rounds; ++round) {
    std::shuffle(sums.begin(), sums.end(), random);
    for (Sum& sum : sums) {
      const auto pending = sum.make(static_cast<float>(rank.number() + round));
      rank->submit({pending}, random() % 3 == 0);
    }
    const auto barrier = plain(Kind::barrier, text("barrier ", lane));
    rank->submit({barrier}, false);
    std::shuffle(sums.begin(), sums.end(), random);
    for (Sum& sum : sums) {
      if (random() % 2 == 0) rank->flush(*sum.pending);
      await(rank, sum.pending);
      PC_CHECK(sum.is(static_cast<float>(3 + 3 * round)), sum.name, " in round ", round);
    }
    await(rank, barrier);
    rank->take_spent();
  }
}

}  // namespace

PC_TEST(engine_two_threads_a_rank) {
  for (const int64_t threshold : {int64_t{0}, int64_t{3000}, int64_t{1} << 27})
    on_ranks([threshold](Driver& rank) {
      if (rank.number() == 0) rank->carrier().tune(threshold, 50e-6);
      std::thread other([&rank] { submit_and_wait(rank, 1, 20); });
      submit_and_wait(rank, 0, 20);
      other.join();
    });
}

// One slot: rank 2 gives it to another operation between fetching a batch and running it.
PC_TEST(engine_slot_is_reused_before_its_batch_runs) {
  std::atomic<int> submitted{0};
  on_ranks(
      [&submitted](Driver& rank) {
        const bool last = rank.number() == 2;
        Sum first("first", 10), second("second", 20);
        while (last && submitted < 2) std::this_thread::yield();
        rank->submit({first.make(1)}, true);  // of the last rank: fetches the batch
        ++submitted;
        if (!last) await(rank, first.pending);
        for (bool accepted = false; !accepted;) try {
            rank->submit({second.make(2)}, false);
            accepted = true;
          } catch (const InvalidArgument&) {  // until all ranks have fetched the batch
            std::this_thread::yield();
          }
        await(rank, first.pending);
        await(rank, second.pending);
        PC_CHECK(first.is(3) && second.is(6), first.mine[0], " and ", second.mine[0]);
      },
      1);
}

PC_TEST(engine_nobody_waits) {
  for (const bool now : {false, true})  // even if a caller has promised to wait
    on_ranks([now](Driver& rank) {
      Sum sum("behind everybody's back", 5000);
      const auto pending = sum.make(1);
      rank->submit({pending}, now);
      while (!pending->done()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      PC_CHECK(sum.is(3), "");
    });
}

PC_TEST(engine_close_runs_what_a_submit_has_fetched) {
  std::atomic<int> submitted{0};
  on_ranks([&submitted](Driver& rank) {
    const bool last = rank.number() == 2;
    while (last && submitted < 2) std::this_thread::yield();
    Sum sum("all", 10);
    rank->submit({sum.make(1)}, true);
    ++submitted;
    if (last) rank.close();
    await(rank, sum.pending);
    PC_CHECK(sum.is(3), "");
  });
}

PC_TEST(engine_join_with_uneven_work) {
  on_ranks([](Driver& rank) {
    Sum sum("grad", 700), window("view", rank, 50, 300);
    for (int time = 0; time < 10; ++time) {
      for (int round = 0; round <= rank.number(); ++round) {
        const Pendings both{sum.make(2), window.make(2)};
        rank->submit({both[0]}, false);
        rank->submit({both[1]}, true);
        for (const auto& one : both) PC_CHECK(rank->wait(one, Clock::now() + kLong), one->name());
        const auto total = static_cast<float>(2 * (3 - round));
        PC_CHECK(sum.is(total) && window.is(total), "round ", round);
      }
      const auto join = plain(Kind::join, "join");
      rank->submit({join}, true);
      PC_CHECK(rank->wait(join, Clock::now() + kLong) && join->number() == 2, "rank ", join->number());
    }
  });
}

PC_TEST(engine_mismatch_and_on) {
  on_ranks([](Driver& rank) {
    for (int round = 0; round < 20; ++round) {
      Sum odd("odd", 100 + (rank.number() == round % 3 ? 1 : 0)), fine("fine", 100);
      rank->submit({odd.make(1)}, false);
      rank->submit({fine.make(1)}, false);
      PC_CHECK(rank->wait(fine.pending, Clock::now() + kLong) && fine.is(3), "");
      PC_CHECK(rank->wait(odd.pending, Clock::now() + kLong), "");
      const auto& fault = odd.pending->fault();
      PC_CHECK(fault && std::string(fault->what()).find("odd") != std::string::npos, "round ", round);
    }
  });
}

PC_TEST(engine_close_ends_what_waits) {
  on_ranks([](Driver& rank) {
    Sum lonely(text("only rank ", rank.number()), 10), all("all", 10);
    rank->submit({lonely.make(1)}, false);
    rank->submit({all.make(1)}, true);
    PC_CHECK(rank->wait(all.pending, Clock::now() + kLong) && all.is(3), "");
    std::thread waiter([&] { PC_CHECK(rank->wait(lonely.pending, Clock::now() + kLong), "the wait did not end"); });
    rank.close();
    waiter.join();
    PC_CHECK(lonely.pending->fault(), "it has no result");
    PC_CHECK_THROWS(CommunicatorFault, rank->submit({Sum("late", 1).make(1)}, false));
  });
}

template <class Reached>
void until(const Reached& reached) {
  while (!reached()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// Keeps a rank inside the barrier "slow" until the others have observed it.
struct Held {
  void operator()(const std::string& name) {
    if (name != "slow") return;
    held = true;
    until([&] { return released.load(); });
  }
  std::atomic<bool> held{false}, released{false};
};

// Waits until a rank that waits for an operation has checked its peers, or the operation has completed.
void let_look(Driver& rank, const Pending& operation) {
  const auto& board = dynamic_cast<const Board&>(rank->carrier());
  const uint64_t before = board.beats(rank.number());
  until([&] { return operation.done() || board.beats(rank.number()) >= before + 4; });
}

PC_TEST(engine_slow_rank_loses_nothing_when_another_leaves) {
  Held held;
  std::atomic<bool> left{false};
  on_ranks([&](Driver& rank) {
    if (rank.number() == 2) rank.runner->before = std::ref(held);
    const auto slow = plain(Kind::barrier, "slow"), next = plain(Kind::barrier, "next");
    rank->submit({slow}, false);
    rank->submit({next}, false);
    await(rank, slow);
    await(rank, next);
    if (rank.number() == 0) {
      rank.leave();
      left = true;
    } else if (rank.number() == 1) {
      const auto lonely = plain(Kind::barrier, "lonely");
      rank->submit({lonely}, false);
      until([&] { return held.held && left; });
      let_look(rank, *lonely);
      PC_CHECK(!lonely->done(), "the team was given up before rank 2 had completed what all have submitted");
      held.released = true;
      PC_CHECK(rank->wait(lonely, Clock::now() + kLong) && lonely->fault(), "rank 0 cannot have submitted it");
      PC_CHECK(std::string(lonely->fault()->what()).find("rank 0 has shut its engine down") != std::string::npos,
               lonely->fault()->what());
    }
  });
}

// The second round waits for rank 2, which has joined, to fetch the first one.
PC_TEST(engine_close_completes_a_round_that_waits_for_a_slow_rank) {
  Held held;
  std::atomic<bool> submitted{false};
  on_ranks([&](Driver& rank) {
    const auto slow = plain(Kind::barrier, "slow"), join = plain(Kind::join, "join");
    if (rank.number() == 2) rank.runner->before = std::ref(held);
    rank->submit({slow}, false);
    if (rank.number() == 2) {
      rank->submit({join}, false);
      await(rank, slow);
      rank->wait(join, Clock::now() + kLong);  // rank 0 never joins
      return;
    }
    until([&] { return held.held.load(); });
    await(rank, slow);
    const auto first = plain(Kind::barrier, "round"), second = plain(Kind::barrier, "round");
    rank->submit({first}, false);
    await(rank, first);
    rank->submit({second}, false);
    if (rank.number() == 0) {
      until([&] { return submitted.load(); });
      rank.leave();
    } else {
      submitted = true;
      let_look(rank, *second);
      held.released = true;
    }
    await(rank, second);
  });
}

PC_TEST(engine_that_runs_out_of_memory_ends_all) {
  on_ranks([](Driver& rank) {
    if (rank.number() == 1)
      rank.runner->before = [](const std::string& name) { return name == "huge" ? throw std::bad_alloc() : void(); };
    const auto huge = plain(Kind::barrier, "huge"), next = plain(Kind::barrier, "next");
    rank->submit({huge}, false);
    if (rank.number() == 1) {
      PC_CHECK(rank->wait(huge, Clock::now() + kLong) && huge->fault(), "it cannot have run");
      return;
    }
    try {
      rank->submit({next}, false);
    } catch (const CommunicatorFault& fault) {  // rank 1 was faster
      return;
    }
    PC_CHECK(rank->wait(next, Clock::now() + kLong) && next->fault(), "rank 1 cannot have submitted it");
    PC_CHECK(std::string(next->fault()->what()).find("rank 1 has run out of memory") != std::string::npos,
             next->fault()->what());
  });
}

PC_TEST(engine_traced) {
  on_ranks([](Driver& rank) {
    rank->timeline().start(true);
    Sum sum("grad", 3000);
    size_t negotiated = 0;
    for (int round = 0; round < 50; ++round) {
      rank->submit({sum.make(1)}, round % 2 == 0);
      await(rank, sum.pending);
      PC_CHECK(sum.is(3), "");
    }
    // the last events are recorded before the operation is reported as done
    const auto [events, trace] = rank->timeline().take();
    for (const auto& event : events) negotiated += event.phase == engine::Phase::negotiate;
    PC_CHECK(negotiated == 50 && !trace.empty(), negotiated);
  });
}

}  // namespace pc::test
