#include "bindings/calls/team_call.h"

#include <pybind11/numpy.h>

#include <algorithm>
#include <mutex>
#include <thread>
#include <utility>

#include "base/bits.h"
#include "base/checked.h"
#include "base/digest.h"
#include "base/environment.h"
#include "bindings/calls/handle.h"
#include "bindings/interpreter.h"

namespace pc {
namespace {

Scaling read_scaling(const py::object& scale) {
  Scaling scaling;
  if (scale.is_none()) return scaling;
  const auto pair = scale.cast<py::tuple>();
  scaling.prescale = pair[0].cast<double>();
  scaling.postscale = pair[1].cast<double>();
  return scaling;
}

// Truncates to the size; keeps the end, where parameters differ most often.
template <size_t Size>
void write(char (&into)[Size], const std::string& text) {
  if (text.size() < Size) text.copy(into, Size - 1);
  else (text.substr(0, Size / 2) + "..." + text.substr(text.size() - (Size / 2 - 4))).copy(into, Size - 1);
}

uint64_t hash_scaling(const Scaling& scaling) {
  if (scaling.prescale == 1.0 && scaling.postscale == 1.0) return 0;
  return bits_of(scaling.prescale) * 31 + bits_of(scaling.postscale) * 17 + 1;
}

using ArrayPair = std::pair<py::object, py::object>;

// Not inlined: calls that do not wait pass it by.
[[gnu::noinline, gnu::cold]] void read_late(const LateTimeout* late_timeout, Operation& operation) {
  if (late_timeout != nullptr) operation.timeout = std::chrono::duration<double>(read_timeout((*late_timeout)()));
}

}  // namespace

std::optional<int32_t> plain_int(py::handle number) {
  if (!PyLong_CheckExact(number.ptr())) return std::nullopt;
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
  if (overflow != 0 || value != static_cast<int32_t>(value)) return std::nullopt;
  return static_cast<int32_t>(value);
}

std::vector<int64_t> read_counts(const py::object& counts, const char* name) {
  std::vector<int64_t> values;
  if (counts.is_none()) return values;
  for (const py::handle item : counts) {
    const int64_t value = PyLong_AsLongLong(item.ptr());
    if (value == -1 && PyErr_Occurred() != nullptr) {
      if (PyErr_ExceptionMatches(PyExc_OverflowError) == 0) throw py::error_already_set();
      PyErr_Clear();
      throw py::value_error(std::string(name) + ": " + std::string(py::repr(item)) + " does not fit 64 bits");
    }
    values.push_back(value);
  }
  return values;
}

std::shared_ptr<void> keep_alive(py::handle x, py::handle out) {
  auto* pair = new ArrayPair(pinned(x), pinned(out));
  return {pair, [](void* held) {
            auto* arrays = static_cast<ArrayPair*>(held);
            if (PyGILState_Check()) return delete arrays;  // a Python thread: it holds the GIL
            const Acquired gil;
            if (!gil) return;  // Python is ending: the arrays are leaked
            delete arrays;
          }};
}

size_t PlanKeyHash::operator()(const PlanKey& key) const {
  size_t hash = static_cast<size_t>(key.collective) | static_cast<size_t>(key.dtype) << 8 |
                static_cast<size_t>(key.placement) << 16 | static_cast<size_t>(key.root) << 24;
  const auto mix = [&hash](size_t word) { hash = (hash ^ word) * 0x9E3779B97F4A7C15ull; };
  mix(static_cast<size_t>(key.count));
  mix(reinterpret_cast<size_t>(key.op));
  mix(reinterpret_cast<size_t>(key.topology));
  mix(hash_scaling(key.scaling));
  if (!key.counts.empty()) mix(digest_of(key.counts));
  if (!key.note.empty()) mix(std::hash<std::string>()(key.note));
  return hash ^ hash >> 32;
}

std::unique_ptr<TeamCall> TeamCall::channel(int32_t sender, int32_t receiver, py::object planner) const {
  return std::make_unique<TeamCall>(std::make_shared<Team>(*team_, sender, receiver), std::move(planner));
}

void require_weights(Collective collective, Dtype dtype) {
  if (kernel_for(dtype, Operator::sum).weighted == nullptr)
    throw WrongType("x: " + std::string(name_of(collective)) + " takes floating-point types, not " + name_of(dtype));
}

void require_turn(const Team& team) {
  team.one_call.require_other();
  Progress::require_other_thread(team.name());
}

std::shared_ptr<Task> submit(const std::shared_ptr<Team>& team, Operation operation, std::shared_ptr<void> keep) {
  team->require_sound();
  auto task = std::make_shared<Task>(team, std::move(operation), std::move(keep));
  Progress::instance().submit(task);
  return task;
}

void TeamCall::read_input(const py::object& x, Arrays& a) const {
  const std::optional<StridedView> strided = strided_view_of(x, "x");
  if (!strided) {
    a.input = view_of(x, "x");
    return;
  }
  a.input = strided->elements;
  a.gather = std::make_unique<PackedCopy>(a.input.data, strided->extents, strided->strides,
                                          static_cast<int64_t>(size_of(a.input.dtype)));
  a.input.data = a.gather->data();
}

TeamCall::Arrays TeamCall::read(const py::object& x, const py::object& out) const {
  Arrays a;
  a.has_input = !x.is_none();
  a.has_output = !out.is_none();
  if (a.has_input) read_input(x, a);
  if (a.has_output) a.output = view_of(out, "out");
  if (!a.has_input && !a.has_output) throw py::type_error("neither x nor out is given");
  return a;
}

void TeamCall::check(PlanKey& key, Arrays& a) const {
  const Traits& t = traits(key.collective);
  const CallShape call{key.collective, team_->rank(), team_->size(), key.root, key.counts};
  check_counts(call);
  key.dtype = a.has_input ? a.input.dtype : a.output.dtype;
  a.count = a.has_input ? a.input.count : a.output.count;
  if (t.in_blocks()) {
    a.count = sum_of(key.counts);
    checked_mul(a.count, static_cast<int64_t>(size_of(key.dtype)), "bytes of a call");
  }
  key.count = a.count;
  check_arrays(call, a);
  if (t.in_blocks() && !t.has_input(team_->rank(), key.root)) {  // a template
    a.has_input = false;
    a.input.data = nullptr;
  }
}

// Between hosts the same on all ranks, regardless of their arrays.
bool TeamCall::may_use_windows(const PlanKey& key) const {
  return team_->may_place() &&
         team_->uses_windows(key.collective, key.count * static_cast<int64_t>(size_of(key.dtype)));
}

uint8_t TeamCall::place(Collective collective, Arrays& a) const {
  const auto located = [&](const ArrayView& view, Location& at) {
    at = team_->place(view.data, view.bytes());
    return at.found();
  };
  const uint8_t placement = placement_of(
      traits(collective), a, [&] { return located(a.input, a.input_at); },
      [&] { return located(a.output, a.output_at); });
  if (traits(collective).single_buffer) a.input_at = a.output_at;
  if ((placement & in_place) != 0) a.output_at = a.input_at;
  return placement;
}

Layout TeamCall::layout_for(const PlanKey& key, const Schedule& schedule) const {
  const int32_t chunks = schedule.view().chunks();
  const Traits& t = traits(key.collective);
  if (!t.in_blocks()) {
    const auto element = static_cast<int64_t>(size_of(key.dtype));
    return Layout::split(key.count, chunks, std::max<int64_t>(1, 64 / element));
  }
  const int32_t n = team_->size();
  const bool matrix = t.split == Split::pairs;
  if (chunks != (matrix ? n * n : n) || key.counts.size() != static_cast<size_t>(chunks))
    throw InvalidArgument("the schedule's chunks are not the blocks of the call");
  return matrix ? Layout::matrix(key.counts, n) : Layout::blocks(key.counts, t.packed_input(), t.packed_output());
}

std::shared_ptr<const Plan> TeamCall::make_plan(const PlanKey& key) const {
  const auto op = py::reinterpret_borrow<py::object>(key.op);
  const auto topology = py::reinterpret_borrow<py::object>(key.topology);
  const auto bytes = key.count * static_cast<int64_t>(size_of(key.dtype));
  const py::tuple made =
      planner_(name_of(key.collective), topology, bytes, key.root, int{key.placement}, op, name_of(key.dtype));
  if (made.size() != 8) throw WrongType("a planner returns eight values, not " + std::to_string(made.size()));
  auto plan = std::make_shared<Plan>();
  plan->schedule = made[0].cast<std::shared_ptr<Schedule>>();
  if (plan->schedule == nullptr) throw WrongType("a planner returns a Schedule, not None");
  const ScheduleView s = plan->schedule->view();
  if (s.size() != team_->size() || s.rank() != team_->rank()) throw InvalidArgument("a schedule for another rank");
  Fingerprint& print = plan->fingerprint;
  print.collective = key.collective;
  print.count = key.count;
  print.root = traits(key.collective).rooted ? key.root : -1;
  print.op = static_cast<Operator>(made[3].cast<int>());
  print.dtype = key.dtype;
  print.placement = key.placement;
  const auto label = made[1].cast<std::string>(), operation = made[6].cast<std::string>();
  write(print.topology, label);
  write(print.operation, operation);
  write(print.note, key.note);
  print.blocks = digest_of(key.counts);
  print.program = Digest().add(label).add(made[2].cast<uint64_t>()).value();
  print.code = Digest().add(operation).add(made[5].cast<uint64_t>()).value();
  print.purpose = Digest().add(key.note).value();
  print.prescale = key.scaling.prescale;
  print.postscale = key.scaling.postscale;
  plan->scaling = key.scaling;
  plan->element = size_of(key.dtype);
  plan->chosen_tile = made[7].cast<double>();
  const bool reduces = runs_reduction(key.collective);
  if (traits(key.collective).weighted) {
    require_weights(key.collective, key.dtype);
    plan->kernel = kernel_for(key.dtype, Operator::sum);
  }
  if (reduces) {
    plan->custom = reinterpret_cast<CustomFunction>(made[4].cast<uintptr_t>());
    if (plan->custom == nullptr) plan->kernel = kernel_for(key.dtype, print.op);
    if (print.op == Operator::avg) plan->scaling.divisor = team_->size();
    if (plan->custom == nullptr && plan->kernel.plain == nullptr)
      throw WrongType(std::string("operator ") + name_of(print.op) + " does not take " + name_of(key.dtype));
    if (plan->scaling.active() && plan->kernel.scaled == nullptr)
      throw WrongType(std::string("operator ") + print.operation + " on " + name_of(key.dtype) +
                      " takes no prescale or postscale");
  }
  if (!reduces && plan->scaling.active())
    throw InvalidArgument(std::string(name_of(key.collective)) + " takes no prescale or postscale: it does not reduce");
  plan->layout = layout_for(key, *plan->schedule);
  plan->check(reduces);
  plan->finish(team_->capacity(), team_->tile_bytes);
  return plan;
}

std::shared_ptr<const Plan> TeamCall::plan_for(const PlanKey& key) {
  if (const CachedPlan* found = plans_.find(key)) return found->plan;
  return plans_
      .insert(key, {make_plan(key), py::reinterpret_borrow<py::object>(key.op),
                    py::reinterpret_borrow<py::object>(key.topology)})
      .plan;
}

Operation TeamCall::prepare(Terms& terms, Arrays& a) {
  PlanKey& key = terms.key;
  check(key, a);
  const bool may_use = may_use_windows(key);
  key.placement = may_use ? place(key.collective, a) : 0;
  std::shared_ptr<const Plan> plan = plan_for(key);
  if ((a.input.data == nullptr && plan->schedule->uses_input() && a.count > 0 && !a.has_input) ||
      (a.output.data == nullptr && plan->schedule->uses_output() && a.count > 0 && !a.has_output))
    throw InvalidArgument("the schedule touches an array that this rank does not have");
  Operation operation;
  operation.plan = std::move(plan);
  operation.input = a.input.data;
  operation.output = a.output.data;
  operation.input_at = a.input_at;
  operation.output_at = a.output_at;
  operation.gather = std::move(a.gather);
  operation.step = terms.step;
  operation.timeout = std::chrono::duration<double>(read_timeout(terms.timeout));
  operation.negotiates = may_use && (team_->spans_hosts() || key.placement != 0);
  if (key.placement != 0) {
    PlanKey staged = key;
    staged.placement = 0;
    operation.fallback = plan_for(staged);
  }
  if (traits(key.collective).single_buffer && key.placement != 0 && team_->rank() == key.root &&
      a.input.data != a.output.data)
    operation.fill = std::make_unique<PlainCopy>(a.output.data, a.input.data,
                                                 static_cast<size_t>(a.count) * operation.plan->element);
  if (terms.copies != nullptr)
    operation.staging = std::make_unique<Staging>(*terms.copies, a.input.data, a.output.data);
  return operation;
}

void TeamCall::require_open() const {
  team_->require_own();
  if (closed_) throw CommunicatorFault(Fault::aborted, -1, "the communicator was freed");
}

void TeamCall::run(Operation& operation, py::handle x, py::handle out, const LateTimeout* late_timeout) {
  if (team_->queued.load(std::memory_order_acquire) > 0) {
    read_late(late_timeout, operation);
    return run_queued(std::move(operation), x, out);
  }
  if (Progress::releasing.load(std::memory_order_relaxed)) Progress::require_other_thread(team_->name());
  operation.caller_waits = true;
  // A small call often completes in less time than releasing the GIL takes.
  std::unique_lock turn(team_->one_call, std::try_to_lock);
  if (turn.owns_lock() && team_->attempt(operation) == Status::done) return;
  read_late(late_timeout, operation);
  const ArrayPair kept(pinned(x), pinned(out));  // other Python threads run now
  const Released released;
  if (!turn.owns_lock()) turn.lock();
  team_->run(operation);
}

// Runs after the nonblocking calls in flight.
void TeamCall::run_queued(Operation operation, py::handle x, py::handle out) {
  require_turn(*team_);
  const std::string description = team_->describe(operation);
  const std::shared_ptr<Task> task = submit(team_, std::move(operation), keep_alive(x, out));
  try {
    wait_for(*task, std::nullopt);
  } catch (const py::error_already_set&) {  // Ctrl-C: as in any other blocked call
    const Released released;
    team_->interrupt(description);
    while (!task->done()) std::this_thread::sleep_for(std::chrono::microseconds(100));  // then the arrays are released
    throw;
  }
}

py::object TeamCall::call(int collective_number, const py::object& x, const py::object& out, const py::object& op,
                          const py::object& topology, int32_t root, const py::object& counts, const py::object& scale,
                          const py::object& timeout, bool nonblocking, const py::object& note, int64_t step,
                          uintptr_t copies) {
  if (collective_number < 0 || collective_number >= static_cast<int>(Collective::count))
    throw py::value_error("no collective has the number " + std::to_string(collective_number));
  const auto collective = static_cast<Collective>(collective_number);
  require_open();
  PlanKey key{collective, root, op.ptr(), topology.ptr(), read_scaling(scale), read_counts(counts, "counts")};
  if (!note.is_none()) key.note = note.cast<std::string>();
  Terms terms{std::move(key), timeout, step, reinterpret_cast<const DeviceCopies*>(copies)};
  Arrays a = read(x, out);
  Outcome outcome = finish(prepare(terms, a), x, out, nonblocking, out);
  return nonblocking ? make_handle(std::move(outcome.task), out) : out;
}

void TeamCall::require_closable() const {
  if (closed_ || team_->inherited()) return;
  team_->one_call.require_other();
  if (team_->queued.load(std::memory_order_acquire) > 0) Progress::require_other_thread(team_->name());
}

void TeamCall::close() {
  if (closed_) return;
  require_closable();
  closed_ = true;
  if (team_->inherited()) return;
  bool interrupted = false;
  {
    const Released released;
    // Peers need the calls that are still in flight; their deadlines bound the wait.
    for (int turn = 1; team_->queued.load(std::memory_order_acquire) > 0 && !team_->poisoned(); ++turn) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
      interrupted = turn % 500 == 0 && Team::interrupted && Team::interrupted();
      if (interrupted) team_->interrupt("free(), with nonblocking calls in flight");
    }
    team_->depart();
    const std::unique_lock turn(team_->one_call, std::try_to_lock);
    if (turn.owns_lock() && team_->queued.load(std::memory_order_acquire) == 0) team_->release_heaps();
  }
  if (interrupted) throw py::error_already_set();
}

}  // namespace pc
