// From Python's arguments to an Operation: checks, plans, results.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/lru.h"
#include "bindings/bindings.h"
#include "executor/cpu/team.h"
#include "progress/progress.h"

namespace pc {

// What a plan depends on.  Operator and topology are compared by identity; the cache keeps them alive.
struct PlanKey {
  Collective collective;
  int32_t root;
  PyObject* op;
  PyObject* topology;
  Scaling scaling{};
  std::vector<int64_t> counts{};
  std::string note{};
  Dtype dtype = Dtype::count;
  uint8_t placement = 0;
  int64_t count = 0;
  bool operator==(const PlanKey&) const = default;
};

constexpr size_t kMostPlans = 4096;

struct PlanKeyHash { size_t operator()(const PlanKey& key) const; };

// Asked for a call's timeout if the call has to wait.
using LateTimeout = std::function<py::object()>;

// The arguments of a communicator's method; its caller holds them.  Those that were not given are null, except for op,
// topology and timeout, which have their defaults.
struct CallArguments {
  py::handle communicator;
  py::handle x, out, root;  // root: or the peer of a message
  py::handle counts, recv_counts;  // counts: or alltoallv's send_counts
  py::handle graph, step, normalised;
  py::handle op, topology, timeout, name, prescale, postscale, match, stream, max_channels;
  bool nonblocking = false;
  const LateTimeout* late_timeout = nullptr;  // of a blocking call, instead of `timeout`
};

// What a call returns.
struct Outcome {
  py::object result;
  std::shared_ptr<Task> task;  // null if the call has completed, or if `result` is its Handle
};

// A Python int, without conversion from other types.
std::optional<int32_t> plain_int(py::handle number);
// Counts in a sequence of Python ints; throws py::value_error for one that does not fit 64 bits.
std::vector<int64_t> read_counts(const py::object& counts, const char* name);

// Throws if a weighted collective does not take the type.
void require_weights(Collective collective, Dtype dtype);
// Throws if the caller is already inside a call of the communicator.
void require_turn(const Team& team);
// Begins a nonblocking call; `keep`: its arrays.
std::shared_ptr<Task> submit(const std::shared_ptr<Team>& team, Operation operation, std::shared_ptr<void> keep);

// Arrays that a queued call must keep alive.  The last owner may be the progress thread.
std::shared_ptr<void> keep_alive(py::handle x, py::handle out);

class TeamCall {
 public:
  // planner(collective, topology, bytes, root, placement, op, dtype) ->
  //   (Schedule, topology's label, digest of its program, operator number, custom function's address, digest of its
  //   code, the operator's name, bytes of a tile or 0)
  TeamCall(std::shared_ptr<Team> team, py::object planner) : team_(std::move(team)), planner_(std::move(planner)) {}

  // `x`, `out`: of NumPy, or Buffers; None if the rank has none.  An `x` that is not C-contiguous is packed when the
  // call runs.
  // `note`: text on which the ranks must also agree.  `step`: of a weighted call.  `copies`: the address of
  // DeviceCopies, if x and out are Buffers in device memory; 0: they are not.
  py::object call(int collective, const py::object& x, const py::object& out, const py::object& op,
                  const py::object& topology, int32_t root, const py::object& counts, const py::object& scale,
                  const py::object& timeout, bool nonblocking, const py::object& note, int64_t step,
                  uintptr_t copies = 0);
  // The communicator's methods (collective_calls.cpp).  They do not enter Python if C code reads the arguments.
  Outcome collective(Collective collective, const CallArguments& call);
  Outcome weighted(Collective collective, const CallArguments& call);
  Outcome allgatherv(const CallArguments& call);
  Outcome alltoallv(const CallArguments& call);
  Outcome barrier(const CallArguments& call);
  Outcome message(const CallArguments& call, bool sends);  // over a channel
  Outcome allreduce_in_place(const CallArguments& call, const PlainArray& x);
  void close();  // later calls of this rank raise
  // Throws if this thread is inside a call, or runs the calls in flight, for which close() waits.
  void require_closable() const;
  bool closed() const { return closed_; }
  void require_open() const;  // throws if freed, or of another process
  std::unique_ptr<TeamCall> channel(int32_t sender, int32_t receiver, py::object planner) const;
  const std::shared_ptr<Team>& team() const { return team_; }
  std::shared_ptr<const Plan> make_plan(const PlanKey& key) const;
  std::shared_ptr<const Plan> plan_for(const PlanKey& key);

 private:
  struct Arrays : CallArrays {
    std::unique_ptr<PackedCopy> gather;  // packs an input that is not contiguous
    Location input_at, output_at;
  };
  // What a call consists of besides its arrays, from which prepare() takes the rest of the plan's key.
  struct Terms {
    PlanKey key;
    py::handle timeout;
    int64_t step = 0;  // of a weighted call
    const DeviceCopies* copies = nullptr;  // of arrays in device memory
  };
  Operation prepare(Terms& terms, Arrays& arrays);
  using Shape = std::span<const int64_t>;
  struct Input;
  struct Taken;
  static Terms terms_of(const CallArguments& call, Collective collective, int32_t root);
  // `shape`: of the result; null if this rank gets none.
  bool take_plain(const CallArguments& call, const PlainArray& x, const Shape* shape, Taken& taken);
  bool take_adapted(const CallArguments& call, const Shape* shape, Taken& taken) const;
  bool take(const CallArguments& call, Collective collective, const PlainArray* x, const Shape* shape, Taken& taken);
  Outcome run_taken(const CallArguments& call, Terms& terms, Taken& taken);
  Outcome run_on_device(const CallArguments& call, const PlanKey& key, const Shape* shape, py::object weights);
  Outcome run_on(const CallArguments& call, Terms& terms, const PlainArray* x, const Shape* shape);
  Outcome run_rows(const CallArguments& call, Collective collective, const Input& x, const std::vector<int64_t>& blocks,
                   int64_t rows);
  std::vector<int64_t> exchange(std::vector<int64_t> numbers, const CallArguments& call);
  Outcome finish(Operation&& operation, py::handle x, py::handle out, bool nonblocking, py::object result,
                 const LateTimeout* late_timeout = nullptr) {
    if (nonblocking) return {std::move(result), submit(team_, std::move(operation), keep_alive(x, out))};
    run(operation, x, out, late_timeout);
    return {std::move(result), nullptr};
  }
  void run(Operation& operation, py::handle x, py::handle out, const LateTimeout* late_timeout = nullptr);
  void run_queued(Operation operation, py::handle x, py::handle out);

  Arrays read(const py::object& x, const py::object& out) const;
  void read_input(const py::object& x, Arrays& arrays) const;
  void check(PlanKey& key, Arrays& arrays) const;  // and completes the key, without a placement
  bool may_use_windows(const PlanKey& key) const;
  uint8_t place(Collective collective, Arrays& arrays) const;
  Layout layout_for(const PlanKey& key, const Schedule& schedule) const;

  std::shared_ptr<Team> team_;
  py::object planner_;
  struct CachedPlan {
    std::shared_ptr<const Plan> plan;
    py::object op, topology;
  };
  // How a collective cuts arrays of a shape, as the planner defines it.
  struct Cut {
    std::vector<int64_t> counts;
    std::vector<int64_t> shape;  // of the result
    std::string note;
  };
  const Cut& cut(Collective collective, std::span<const int64_t> shape);
  LruCache<std::pair<Collective, std::vector<int64_t>>, Cut, std::map> cuts_{kMostPlans};
  template <class Key, class Value> using Plans = std::unordered_map<Key, Value, PlanKeyHash>;
  LruCache<PlanKey, CachedPlan, Plans> plans_{kMostPlans};
  std::atomic<bool> closed_{false};  // read without the GIL, too
};

template <> inline constexpr bool is_bound<TeamCall> = true;

// A communicator's team, held for the duration of a call: another thread may free the communicator.  Throws WrongType.
py::object own_team(py::handle communicator);
// The object as a team.  Throws WrongType.
TeamCall& team_of(py::handle object);

}  // namespace pc
