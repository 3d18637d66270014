#include "bindings/calls/fixed_call.h"

#include <mutex>
#include <utility>

#include "base/checked.h"

namespace pc {
namespace {

// Of each of two messages that proceed at the same time.
constexpr std::chrono::microseconds kShortestTurn(20), kLongestTurn(4000);

bool has_moved(const Cursor& before, const Cursor& after) {
  return before.entered != after.entered || before.tile != after.tile || before.position != after.position;
}

// True: completed.  Without it, also looks at the peers' state and the deadline.
bool take_turn(Team& team, Operation& operation, std::chrono::microseconds turn) {
  return team.run_until(operation, Clock::now() + turn) == Status::done || team.advance(operation) == Status::done;
}

}  // namespace

FixedCall::FixedCall(const py::object& team, Collective collective, Dtype dtype, int64_t count, int32_t root,
                     const py::object& op, std::vector<int64_t> counts, std::string note, const py::object& timeout)
    : call_(&team.cast<TeamCall&>()), team_(call_->team()), timeout_(read_timeout(timeout)) {
  call_->require_open();
  team.inc_ref();  // handlers may run while Python ends
  const Traits& t = traits(collective);
  const CallShape shape{collective, team_->rank(), team_->size(), root, counts};
  check_counts(shape);
  if (t.rooted && (root < 0 || root >= team_->size()))
    throw InvalidArgument("root " + std::to_string(root) + " is not a rank of this communicator of " +
                          std::to_string(team_->size()));
  if (t.in_blocks()) count = sum_of(counts);
  const auto [input, output] = lengths_of(shape, count);
  const auto element = static_cast<int64_t>(size_of(dtype));
  if (t.has_input(team_->rank(), root)) input_bytes_ = checked_mul(input, element, "bytes of a call");
  if (t.has_output(team_->rank(), root) && t.has_result(team_->rank()))
    output_bytes_ = checked_mul(output, element, "bytes of a call");
  may_use_windows_ = team_->uses_windows(collective, checked_mul(count, element, "bytes of a call"));
  const py::object none = py::none();
  plan_ = call_->plan_for(
      {collective, root, op.ptr(), none.ptr(), {}, std::move(counts), std::move(note), dtype, 0, count});
}

Operation FixedCall::operation(const void* input, void* output) const {
  call_->require_open();
  Operation made;
  made.plan = plan_;
  made.negotiates = team_->spans_hosts() && team_->has_windows() && may_use_windows_;
  made.input = input;
  made.output = output;
  made.timeout = timeout_;
  return made;
}

void FixedCall::run(const void* input, void* output) const {
  Operation made = operation(input, output);
  if (team_->queued.load(std::memory_order_acquire) > 0) {
    require_turn(*team_);
    submit(team_, std::move(made), nullptr)->wait(-1);
    return;
  }
  if (Progress::releasing.load(std::memory_order_relaxed)) Progress::require_other_thread(team_->name());
  made.caller_waits = true;
  const std::lock_guard turn(team_->one_call);
  if (team_->attempt(made) != Status::done) team_->run(made);  // most peers are about to arrive
}

void FixedCall::run_both(const FixedCall& send, const void* input, const FixedCall& receive, void* output) {
  Operation sending = send.operation(input, nullptr), receiving = receive.operation(nullptr, output);
  const auto queued = [](const FixedCall& call) { return call.team_->queued.load(std::memory_order_acquire) > 0; };
  if (queued(send) || queued(receive)) {
    require_turn(*send.team_);
    require_turn(*receive.team_);
    const auto first = submit(send.team_, std::move(sending), nullptr);
    const auto second = submit(receive.team_, std::move(receiving), nullptr);
    second->wait(-1);
    first->wait(-1);
    return;
  }
  if (Progress::releasing.load(std::memory_order_relaxed)) Progress::require_other_thread(send.team_->name());
  const std::lock_guard send_turn(send.team_->one_call), receive_turn(receive.team_->one_call);
  auto turn = kShortestTurn;
  for (bool sent = false, received = false; !sent || !received;) {
    const Cursor before[] = {sending.cursor, receiving.cursor};
    if (!sent) sent = take_turn(*send.team_, sending, turn);
    if (!received) received = take_turn(*receive.team_, receiving, turn);
    const bool moved = has_moved(before[0], sending.cursor) || has_moved(before[1], receiving.cursor);
    turn = moved ? kShortestTurn : std::min(2 * turn, kLongestTurn);
    if (turn == kLongestTurn && Team::interrupted && Team::interrupted())
      send.team_->interrupt(send.team_->describe(sending));
  }
}

}  // namespace pc
