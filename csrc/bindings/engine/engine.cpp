// Python bindings of the engine: items in, works out.
#include "engine/engine.h"

#include <pybind11/numpy.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "bindings/bindings.h"
#include "bindings/calls/team_call.h"
#include "bindings/engine/carriers.h"
#include "bindings/engine/grouped_allreduce.h"
#include "bindings/engine/work.h"
#include "bindings/interpreter.h"

namespace pc {
namespace {

using engine::Details;
using engine::Engine;
using engine::Member;
using engine::Pending;
using engine::Pendings;

class PyRunner : public engine::Runner {
 public:
  PyRunner(std::shared_ptr<Team> team, py::object run) : team_(std::move(team)), run_(std::move(run)) {}

  void run(const Pendings& mine, const std::vector<Member>& members) override {
    const Acquired gil;
    if (!gil) wait_for_exit();
    const auto& s = members[0].details->signature;
    py::list batch;
    for (size_t i = 0; i < members.size(); ++i) batch.append(row_of(mine[i], members[i]));
    try {
      run_(engine::name_of(s.kind), s.device, s.dtype == Dtype::count ? "" : name_of(s.dtype), name_of(s.op),
           s.prescale, s.postscale, batch);
    } catch (const py::error_already_set& error) {
      if (team_->poisoned()) team_->raise();
      throw InvalidArgument(error.what());
    }
  }

  void finished(const std::vector<std::shared_ptr<void>>& kept) override {
    const Acquired gil;
    if (!gil) wait_for_exit();
    for (const auto& work : kept) work_of(work)->call_back();
  }

 private:
  // (this rank's work or None, shape, all ranks' rows, ranks that have joined, place in the windows)
  py::tuple row_of(const std::shared_ptr<Pending>& mine, const Member& member) const {
    const Details& details = *member.details;
    const auto& s = details.signature;
    const std::vector<int64_t> shape(s.shape.begin(), s.shape.begin() + std::min(s.dims, engine::kMostDims));
    return py::make_tuple(mine ? py::cast(work_of(mine->keep())) : py::none(), shape, details.rows, details.absent,
                          member.place);
  }

  std::shared_ptr<Team> team_;
  py::object run_;
};

using Objects = std::vector<py::object>;

// -- the engine ---------------------------------------------------------------------------------------------------

void want_report(int) { Engine::reports_wanted.fetch_add(1); }

// The Python objects that the engine's batches use.  Lives as long as the engine, which works may keep alive after
// Python has dropped its Engine.
class Plans {
 public:
  Plans(py::object team, py::object buffer, py::object topology)
      : team_(std::move(team)), buffer_(std::move(buffer)), topology_(std::move(topology)) {}

  // Called without the GIL, for the first buffer of about this size.
  std::shared_ptr<const Plan> make(const engine::Reduction& r, int64_t count, bool in_window) const {
    const Acquired gil;
    if (!gil) wait_for_exit();
    try {
      const py::str op(name_of(r.op));
      Scaling scaling;
      scaling.prescale = r.prescale;
      scaling.postscale = r.postscale;
      const uint8_t placement = in_window ? input_shared | output_shared | in_place : 0;
      return team_.cast<TeamCall&>().make_plan(
          {Collective::allreduce, -1, op.ptr(), topology_.ptr(), scaling, {}, {}, r.dtype, placement, count});
    } catch (const py::error_already_set& error) {
      throw InvalidArgument(error.what());
    } catch (const py::cast_error& error) {
      throw InvalidArgument(error.what());
    }
  }

 private:
  py::object team_, buffer_, topology_;
};

double seconds(double value, const char* what) {
  if (!(value >= 0))
    throw InvalidArgument(std::string(what) + " must be a number of seconds, 0 or more, not " + std::to_string(value));
  return value;
}

class PyEngine {
 public:
  PyEngine(const py::object& team, std::shared_ptr<engine::Carrier> carrier, const py::object& buffer, int32_t buffers,
           py::object topology, py::object run, double warn_seconds, double shutdown_seconds)
      : team_(team.cast<TeamCall&>().team()), plans_(std::make_shared<Plans>(team, buffer, std::move(topology))) {
    const auto* board = dynamic_cast<engine::Board*>(carrier.get());
    if (carrier == nullptr || (board == nullptr) != team_->spans_hosts())
      throw InvalidArgument("carrier: a Board for the ranks of one host, Rounds for those of several");
    if (board != nullptr && !board->prepared()) throw InvalidArgument("no rank has prepared the board");
    const ArrayView view = board != nullptr ? fusion_buffer(buffer, buffers) : ArrayView{};
    engine_ = std::make_shared<Engine>(
        team_, std::move(carrier),
        [plans = plans_](const engine::Reduction& r, int64_t count, bool in_window) {
          return plans->make(r, count, in_window);
        },
        view.data, view.count, board != nullptr ? buffers : 1,
        engine::StallSettings{seconds(warn_seconds, "warn_seconds"), seconds(shutdown_seconds, "shutdown_seconds")},
        std::make_shared<PyRunner>(team_, std::move(run)));
    groups_ = std::make_unique<GroupedAllreduce>(team_, engine_);
  }

  std::vector<std::shared_ptr<Work>> submit(const Objects& items, bool now, bool grouped) {
    team_->require_own();
    engine_->take_spent();
    const uint64_t group = grouped ? group_of(items) : 0;
    const size_t together = grouped ? items.size() : 1;
    Pendings operations;
    std::vector<std::shared_ptr<Work>> works;
    try {
      for (const py::object& item : items) {
        auto work = std::make_shared<Work>(engine_, item);
        work->pending = read_item(work, *team_, group, together);
        operations.push_back(work->pending);
        works.push_back(std::move(work));
      }
      const Released released;
      engine_->submit(operations, now);
    } catch (...) {
      for (const auto& operation : operations) operation->refuse();  // breaks the reference cycle of work and operation
      throw;
    }
    return works;
  }

  // submit(), then wait for all: their results.
  Objects run(const Objects& items) {
    Objects results;
    for (const auto& work : submit(items, true, true)) results.push_back(work->wait(std::nullopt));
    return results;
  }

  py::object reduce_group(const py::object& label, const py::object& tensors, const std::string& op, double prescale,
                          double postscale, const py::object& make, int64_t least) {
    return groups_->run(label, tensors, {operator_named(op), prescale, postscale, make, least});
  }

  void loop() {
    const Released released;
    engine_->loop();
  }
  void close() {
    if (team_->inherited()) return;
    {
      const Released released;
      engine_->close();
    }
    engine_->take_spent();
  }
  void tune(int64_t threshold, double cycle_seconds) {
    if (threshold < 0) throw InvalidArgument("a threshold of " + std::to_string(threshold) + " bytes");
    engine_->carrier().tune(threshold, seconds(cycle_seconds, "cycle_seconds"));
  }
  Engine& engine() { return *engine_; }

 private:
  static constexpr int64_t kLeastBuffer = 64;

  ArrayView fusion_buffer(const py::object& buffer, int32_t buffers) const {
    const ArrayView view = view_of(buffer, "buffer");
    if (view.dtype != Dtype::uint8 || !view.writable || buffers < 1 || view.count / buffers < kLeastBuffer ||
        team_->locate(view.data, view.count).window < 0)
      throw InvalidArgument("buffer: a writable array of uint8 in a window of the team, of at least " +
                            std::to_string(kLeastBuffer) + " bytes for each of 1 or more buffers");
    return view;
  }

  std::shared_ptr<Team> team_;
  std::shared_ptr<Plans> plans_;
  std::shared_ptr<Engine> engine_;
  std::unique_ptr<GroupedAllreduce> groups_;
};

// Only signals that programs may use freely: a handler that returns from SIGSEGV or the like is called again forever.
bool report_on_signal(int number) {
  const bool free =
      number == SIGUSR1 || number == SIGUSR2 || number == SIGHUP || (number >= SIGRTMIN && number <= SIGRTMAX);
  if (!free)
    throw InvalidArgument("signal " + std::to_string(number) + " is not SIGUSR1, SIGUSR2, SIGHUP or real-time");
  return std::signal(number, want_report) != SIG_ERR;
}

using PhaseRow = std::tuple<std::string, std::string, std::string, int64_t, int64_t>;
using Ranks = std::vector<int32_t>;
using WaitRow = std::pair<int32_t, uint64_t>;
using StepRow = std::tuple<int64_t, int64_t, int32_t, int64_t, Ranks, Ranks, uint64_t, Ranks, std::vector<WaitRow>>;

std::pair<std::vector<PhaseRow>, std::vector<StepRow>> take_events(PyEngine& self) {
  const auto [events, steps] = self.engine().timeline().take();
  std::vector<PhaseRow> phases;
  for (const auto& e : events)
    phases.emplace_back(engine::name_of(e.phase), e.kind == nullptr ? "" : e.kind, e.name, e.begin, e.end);
  std::vector<StepRow> rows;
  for (const auto& s : steps) {
    std::vector<WaitRow> waits;
    for (const auto& w : s.waits) waits.emplace_back(w.peer, w.value);
    rows.emplace_back(s.begin, s.end, s.chunk, s.tile, s.sources, s.targets, s.value, s.consumers, std::move(waits));
  }
  return {std::move(phases), std::move(rows)};
}

}  // namespace

template <> inline constexpr bool is_bound<PyEngine> = true;

void bind_engine(py::module_& m) {
  py::class_<Work, std::shared_ptr<Work>>(m, "Work", "An operation in progress or completed, with its result.")
      .def_property_readonly("name", &Work::name)
      .def_readonly("item", &Work::item)
      .def_readwrite("result", &Work::result)
      .def_readwrite("error", &Work::error)
      .def_readwrite("on_wait", &Work::on_wait, "Called by wait() after success, in the waiting thread.")
      .def("test", &Work::done, "Whether it has completed, successfully or not.")
      .def("wait", &Work::wait, py::arg("timeout") = py::none(),
           "Block until it has completed, at most `timeout` seconds; returns the result, raises what the operation "
           "raised.")
      .def("flush", &Work::flush, "Run it as soon as all ranks have submitted it, as if this thread waited for it.")
      .def("when_done", &Work::when_done, py::arg("callback"),
           "Call `callback()` when it has completed: on the engine's thread, or immediately if it already has.");
  py::class_<PyEngine>(m, "Engine", "Named operations that the ranks of a team submit in any order.")
      .def(py::init<const py::object&, std::shared_ptr<engine::Carrier>, const py::object&, int32_t, py::object,
                    py::object, double, double>(),
           py::arg("team"), py::arg("carrier"), py::arg("buffer"), py::arg("buffers"), py::arg("topology"),
           py::arg("run"), py::arg("warn_seconds"), py::arg("shutdown_seconds"),
           "`buffer`, for `buffers` tiles: in a window of the team; between hosts None.")
      .def("submit", &PyEngine::submit, py::arg("items"), py::arg("now"), py::arg("grouped") = true,
           "Submit items, as a group or each for itself; `now`: the caller waits for them immediately.")
      .def("run", &PyEngine::run, py::arg("items"), "Submit items as a group and wait for them; returns their results.")
      .def("reduce_group", &PyEngine::reduce_group, py::arg("label"), py::arg("tensors"), py::arg("op"),
           py::arg("prescale"), py::arg("postscale"), py::arg("make"), py::arg("least"),
           "Allreduces of plain torch tensors in CPU memory as a group, named label(), several with numbers; waits for "
           "them. Results of `least` bytes or more are made by make(tensor); make=None: in place. Returns them in a "
           "list; None, before label() is called: submit items instead.")
      .def("loop", &PyEngine::loop, "Body of the engine's thread; returns after close().")
      .def("close", &PyEngine::close)
      .def(
          "require_outside", [](PyEngine& self) { self.engine().require_outside(); },
          "Raise if the caller is inside an operation of the engine.")
      .def("tune", &PyEngine::tune, py::arg("threshold"), py::arg("cycle_seconds"), "Set both for all ranks.")
      .def(
          "traffic", [](PyEngine& self) { return self.engine().traffic(); },
          "Bytes reduced by allreduces so far, and batches run.")
      .def_property_readonly("threshold", [](PyEngine& self) { return self.engine().carrier().threshold(); })
      .def_property_readonly("cycle_seconds", [](PyEngine& self) { return self.engine().carrier().cycle_seconds(); })
      .def(
          "refuse",
          [](PyEngine& self, const std::string& name, const std::string& why) {
            const Released released;
            self.engine().refuse(name, why);
          },
          py::arg("name"), py::arg("why"), "Tell the other ranks that this one's submission was refused, and why.")
      .def(
          "report", [](PyEngine& self) { return self.engine().report(); },
          "Which operations wait for which ranks, one per line.")
      .def(
          "trace", [](PyEngine& self, bool on) { self.engine().timeline().start(on); }, py::arg("on"))
      .def("take_events", &take_events,
           "Events since the last call: [(phase, collective, operation, begin, end)], [(begin, end, chunk, tile, "
           "source ranks, target ranks, counter, ranks that wait for it, [(peer, its counter)])]; ns of "
           "time.monotonic_ns().");
  m.def("report_on_signal", &report_on_signal, py::arg("number"),
        "Make engines report to standard error which operations wait for which ranks, on this signal.");
}

}  // namespace pc
