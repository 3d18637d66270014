// From Python's arguments to an Operation: checks, plans, results.
#pragma once

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

// Size up to which copying in costs less than the second wait of windows.
constexpr int64_t kAlwaysStaged = 4096;

// What a plan depends on.  Operator and topology are compared by identity; the cache keeps them alive.
struct PlanKey {
  Collective collective;
  Dtype dtype;
  uint8_t placement;
  int32_t root;
  int64_t count;
  PyObject* op;
  PyObject* topology;
  Scaling scaling;
  std::vector<int64_t> counts;
  std::string note{};
  bool operator==(const PlanKey&) const = default;
};

constexpr size_t kMostPlans = 4096;

struct PlanKeyHash { size_t operator()(const PlanKey& key) const; };

class TeamCall {
 public:
  // planner(collective, topology, bytes, root, placement, op, dtype) ->
  //   (Schedule, topology's label, digest of its program, operator number, custom function's address, digest of its
  //   code, the operator's name)
  TeamCall(std::shared_ptr<Segment> segment, int32_t rank, int32_t size, int64_t scratch_bytes,
           std::vector<int32_t> world_ranks, std::string name, bool threads, py::object planner);
  TeamCall(std::shared_ptr<Team> team, py::object planner) : team_(std::move(team)), planner_(std::move(planner)) {}

  // `x` or `out` may be None if the rank has none; an `out` of None is created if it has the shape of x.
  // An `x` that is not C-contiguous is packed when the call runs.
  // NotImplemented: arrays that must be adapted first (another library's, or an `out` that is not contiguous).
  // `note`: text on which the ranks must also agree.
  py::object call(int collective, py::object x, py::object out, const py::object& op, const py::object& topology,
                  int32_t root, const py::object& counts, const py::object& scale, const py::object& timeout,
                  bool nonblocking, const py::object& note);
  // The latency paths of NumPy arrays, without scaling and names: those that cut them in blocks, and others.
  // NotImplemented: arguments that must be adapted first.
  py::object call_elementwise(Collective collective, const py::object& x, int32_t root, py::object out,
                              const py::object& op, const py::object& topology, const py::object& timeout);
  py::object call_blocks(Collective collective, const py::object& x, int32_t root, py::object out, const py::object& op,
                         const py::object& topology, const py::object& timeout);
  void close();  // later calls of this rank raise
  bool closed() const { return closed_; }
  void require_open() const;  // throws if freed, or of another process
  std::unique_ptr<TeamCall> channel(int32_t sender, int32_t receiver, py::object planner) const;
  const std::shared_ptr<Team>& team() const { return team_; }
  std::shared_ptr<const Plan> make_plan(const PlanKey& key) const;

 private:
  Operation prepare(Collective collective, const py::object& x, const py::object& out, const py::object& op,
                    const py::object& topology, int32_t root, std::vector<int64_t> counts, const Scaling& scaling,
                    const py::object& timeout, std::string note = {});
  void run(Operation& operation, const py::object& x, const py::object& out);
  void run_queued(Operation operation, const py::object& x, const py::object& out);
  std::shared_ptr<Task> submit(Operation operation, const py::object& x, const py::object& out) const;

  struct Arrays : CallArrays {
    std::unique_ptr<PackedCopy> gather;  // packs an input that is not contiguous
    Dtype dtype = Dtype::count;
    Location input_at, output_at;
  };
  Arrays read(Collective collective, const py::object& x, const py::object& out, int32_t root,
              const std::vector<int64_t>& counts) const;
  void read_input(const py::object& x, Arrays& arrays) const;
  static bool may_use_windows(Collective collective, const Arrays& arrays);
  uint8_t place(Collective collective, Arrays& arrays) const;
  std::shared_ptr<const Plan> plan_for(const PlanKey& key);
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
    std::vector<py::ssize_t> shape;  // of the result
    std::string note;
  };
  const Cut& cut(Collective collective, py::handle x);
  LruCache<std::pair<Collective, std::vector<int64_t>>, Cut, std::map> cuts_{kMostPlans};
  template <class Key, class Value> using Plans = std::unordered_map<Key, Value, PlanKeyHash>;
  LruCache<PlanKey, CachedPlan, Plans> plans_{kMostPlans};
  bool closed_ = false;
};

template <> inline constexpr bool is_bound<TeamCall> = true;

}  // namespace pc
