// The engine's board, step by step: what is agreed on, and when.
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/status.h"
#include "boards.h"

namespace pc::test {

using namespace boards;

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

// The lock is the first member of the board.
PC_TEST(board_of_a_rank_that_died_holding_the_lock_is_given_up) {
  const size_t bytes = Board::bytes(2, kSlots);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  const auto owner = std::shared_ptr<void>(memory, [bytes](void* at) { munmap(at, bytes); });
  Board first(owner, static_cast<char*>(memory), 0, 2, kSlots), second(owner, static_cast<char*>(memory), 1, 2, kSlots);
  first.prepare();
  first.tune(1 << 20, 0);
  announce(first, allreduce("a"));
  if (fork() == 0) {
    pthread_mutex_lock(static_cast<pthread_mutex_t*>(memory));
    _exit(0);
  }
  wait(nullptr);
  first.who_died = [] { return 1; };
  for (int turn = 0; turn < 2; ++turn)
    for (Board* board : {&first, &second}) {
      const std::string expected = board == &first ? "rank 1 is gone" : "a rank is gone";
      const auto raises_peer_lost = [&](const std::function<void()>& call) {
        try {
          call();
        } catch (const CommunicatorFault& fault) {
          PC_CHECK(fault.fault == Fault::peer_lost && fault.culprit == (board == &first ? 1 : -1), fault.culprit);
          PC_CHECK(std::string(fault.what()).find(expected) == 0, fault.what());
          return true;
        }
        return false;
      };
      PC_CHECK(raises_peer_lost([&] { announce(*board, allreduce("b")); }), "announce");
      PC_CHECK(raises_peer_lost([&] { board->stalls(0, true); }), "stalls");
      PC_CHECK(raises_peer_lost([&] { board->flush(0); }), "flush");
      PC_CHECK(raises_peer_lost([&] { board->leave(); }), "leave");
    }
}

// A round that a rank has not fetched is not overwritten by the next one, nor is its slot given to another name.
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
  PC_CHECK(fetch_all(world[0]).empty() && fetch_all(world[1]).empty(), "rank 2 has yet to fetch the previous one");
  const auto first = world[2].fetch();
  PC_CHECK(first.size() == 1 && first[0].details && first[0].details->signature.shape[0] == 4, "");
  for (int32_t r = 0; r < 3; ++r) PC_CHECK(shape(fetch_all(world[r])) == 5, "rank ", r);
  announce(world[0], allreduce("other"));
}

// Otherwise the ranks that have joined would not take part in the second round, for which the others wait.
PC_TEST(board_join_waits_for_the_round_that_a_slow_rank_has_to_fetch_first) {
  World world(3, 1 << 20);
  announce(world[2], join());
  const auto names = [](const std::vector<std::vector<Member>>& batches) {
    std::vector<std::string> found;
    for (const auto& batch : batches)
      for (const Member& member : batch) found.push_back(member.details ? member.details->name : "?");
    return found;
  };
  using Names = std::vector<std::string>;
  for (int32_t r = 0; r < 2; ++r) announce(world[r], allreduce("grad"));
  for (int32_t r = 0; r < 2; ++r) PC_CHECK(names(fetch_all(world[r])) == Names{"grad"}, "rank ", r);
  for (int32_t r = 0; r < 2; ++r) {
    announce(world[r], allreduce("grad"));
    announce(world[r], join());
  }
  PC_CHECK(fetch_all(world[0]).empty(), "rank 2 has yet to fetch the first round");
  PC_CHECK((names(fetch_all(world[2])) == Names{"grad", "grad", "join"}), "");
  for (int32_t r = 0; r < 2; ++r) PC_CHECK((names(fetch_all(world[r])) == Names{"grad", "join"}), "rank ", r);
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
  world[1].flush(slot);
  PC_CHECK(fetch_all(world[0]).size() == 1 && fetch_all(world[1]).size() == 1, "a rank waits");
  both("large", 100);
  PC_CHECK(fetch_all(world[0]).size() == 1 && fetch_all(world[1]).size() == 1, "the largest fused size");
  const int32_t flushed_early = announce(world[0], allreduce("flushed before the others come"));
  world[0].flush(flushed_early);
  announce(world[1], allreduce("flushed before the others come"));
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
