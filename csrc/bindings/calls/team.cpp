// Python bindings of one rank's part of a communicator: arrays in, schedule run, result out.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstring>
#include <tuple>

#include "base/checked.h"
#include "bindings/bindings.h"
#include "bindings/calls/handle.h"
#include "bindings/calls/team_call.h"
#include "bindings/interpreter.h"
#include "link/ucx.h"

namespace pc {
namespace {

// A window's memory, kept alive by the arrays created in it.
class Window {
 public:
  Window(std::shared_ptr<Team> team, std::shared_ptr<Segment> segment, int64_t id, int64_t stride, int64_t bytes)
      : team_(std::move(team)), segment_(std::move(segment)), id_(id), stride_(stride), bytes_(bytes) {
    if (id < 0 || bytes < 0 || stride < bytes)
      throw InvalidArgument("a window needs a nonnegative number, and a stride of at least its size");
    const int64_t all = checked_mul<int64_t>(stride, team_->local_size(), "bytes of a window");
    if (static_cast<size_t>(all) > segment_->bytes())
      throw InvalidArgument("the segment has " + std::to_string(segment_->bytes()) + " bytes, and the window " +
                            std::to_string(all));
    team_->add_window(id, {segment_->data(), stride, bytes});
  }
  ~Window() { team_->remove_window(id_); }
  char* data() const { return segment_->data() + team_->local_rank() * stride_; }
  int64_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<Team> team_;
  std::shared_ptr<Segment> segment_;
  int64_t id_, stride_, bytes_;
};

}  // namespace

template <> inline constexpr bool is_bound<Window> = true;

namespace {

py::array array_in(const py::object& window, const py::dtype& dtype, const std::vector<py::ssize_t>& shape) {
  const auto& self = window.cast<const Window&>();
  const Dtype element = dtype_of(dtype);
  if (element == Dtype::count) throw py::type_error("no collective takes element type " + std::string(py::str(dtype)));
  const auto size = static_cast<int64_t>(size_of(element));
  if (checked_count(shape, size, "shape") * size > self.bytes())
    throw InvalidArgument("an array of that shape is larger than the window's " + std::to_string(self.bytes()) +
                          " bytes");
  return py::array(dtype, shape, self.data(), window);
}

// Throws InvalidArgument.
int32_t rank_in(const TeamCall& call, int32_t rank) {
  if (rank < 0 || rank >= call.team()->size())
    throw InvalidArgument("rank " + std::to_string(rank) + " is not in a communicator of " +
                          std::to_string(call.team()->size()));
  return rank;
}

const RankBlock& block_of(const TeamCall& call, int32_t rank) {
  return call.team()->control().block(rank_in(call, rank));
}

using SocketTuple = std::tuple<int32_t, std::tuple<int, int, int>>;

std::unique_ptr<TeamCall> make_team(std::shared_ptr<Segment> segment, int32_t rank, int32_t size, int64_t scratch_bytes,
                                    std::vector<int32_t> world_ranks, std::string name, bool threads,
                                    py::object planner, std::vector<int32_t> here,
                                    const std::vector<SocketTuple>& others,
                                    std::optional<std::shared_ptr<UcxWorker>> ucx) {
  std::vector<Sockets> sockets;
  for (const auto& [peer, each] : others)
    sockets.push_back({peer, std::get<0>(each), std::get<1>(each), std::get<2>(each)});
  if (here.empty() && others.empty()) here = Team::all_of(size);
  auto team = std::make_shared<Team>(required(std::move(segment)), rank, size, scratch_bytes, std::move(world_ranks),
                                     std::move(name), threads, std::move(here), sockets, ucx.value_or(nullptr));
  return std::make_unique<TeamCall>(std::move(team), std::move(planner));
}

void set_patience(const TeamCall& self, double spin_us, double yield_us, double awake_us) {
  const auto to = [](double us) {
    if (!(us >= 0)) throw InvalidArgument("a time of " + std::to_string(us) + " microseconds");
    return std::chrono::nanoseconds(static_cast<int64_t>(std::min(us, 1e15) * 1e3));
  };
  self.team()->patience = {to(spin_us), to(yield_us), to(awake_us)};
}

void set_tile_bytes(const TeamCall& self, std::pair<double, double> bytes) {
  for (const double each : {bytes.first, bytes.second})
    if (!(each >= 0 && each <= 1e15)) throw InvalidArgument("a tile of " + std::to_string(each) + " bytes");
  self.team()->tile_bytes = {bytes.first, bytes.second};
}

void watch_hosts(const TeamCall& self, const std::vector<std::string>& hosts, std::vector<std::string> names,
                 const std::vector<int32_t>& numbers) {
  const auto size = static_cast<size_t>(self.team()->size());
  if (hosts.size() != size || names.size() != size || numbers.size() != size)
    throw InvalidArgument("hosts, names and numbers: one for each rank");
  self.team()->watch_hosts(hosts, std::move(names), numbers);
}

std::string mail_of(const Team& team, int32_t rank) {
  const char* mail = team.control().block(rank).mail;
  return {mail, strnlen(mail, sizeof RankBlock::mail)};
}

void write_mail(const Team& team, const std::string& text) {
  if (text.size() >= sizeof RankBlock::mail) throw InvalidArgument("mail too long");
  std::strcpy(team.control().block(team.rank()).mail, text.c_str());
}

}  // namespace

void bind_team(py::module_& m) {
  const auto report = [](Fault fault) {
    return [fault](const TeamCall& self, int32_t rank, const std::string& text) {
      self.team()->report(fault, rank, text);
    };
  };
  m.attr("ALWAYS_STAGED") = kAlwaysStaged;
  m.attr("ALWAYS_STAGED_BETWEEN_HOSTS") = kAlwaysStagedBetweenHosts;
  py::module_::import("atexit").attr("register")(py::cpp_function(python_ends));
  py::class_<Window, std::shared_ptr<Window>>(m, "Window", "A symmetric allocation.")
      .def("array", &array_in, py::arg("dtype"), py::arg("shape"), "This rank's part as a NumPy array.");

  py::class_<TeamCall>(m, "Team", "One rank's part of a communicator.")
      .def(py::init(&make_team), py::arg("segment"), py::arg("rank"), py::arg("size"), py::arg("scratch_bytes"),
           py::arg("world_ranks"), py::arg("name"), py::arg("threads"), py::arg("planner"),
           py::arg("here") = std::vector<int32_t>(), py::arg("others") = std::vector<SocketTuple>(),
           py::arg("ucx") = py::none(),
           "planner: see Planner. Its result is checked, except for the address of a custom operator's function, which "
           "calls jump to unchecked. here: the ranks that share the segment; default all. others: for each of the "
           "remaining ranks, (rank, sockets): descriptors of three connected TCP sockets, which are taken over. ucx: "
           "connected with these ranks, it replaces the first socket.")
      .def_static("note_failure", &Team::note_failure, py::arg("text"),
                  "Note what ends this program: its peers are given it when the communicators are closed.")
      .def_static("failure", &Team::failure, "What note_failure() was given; empty: nothing.")
      .def_static("blamed", &Team::blamed,
                  "The world rank that the newest error is due to, unless it is a mismatch; -1: none.")
      .def_static("segment_bytes", &Team::segment_bytes, py::arg("size"), py::arg("scratch_bytes"))
      .def(
          "call", &TeamCall::call, py::arg("collective"), py::arg("x"), py::arg("out"), py::arg("op"),
          py::arg("topology"), py::arg("root"), py::arg("counts"), py::arg("scale"), py::arg("timeout"),
          py::arg("nonblocking"), py::arg("note") = py::none(), py::arg("step") = 0, py::arg("copies") = 0,
          "Run one collective; returns its result, or a Handle. The ranks must agree on `note`, and on the `step` of a "
          "weighted one. copies: for arrays in device memory, the address of _cuda.StagingCopies.")
      .def("channel", &TeamCall::channel, py::arg("sender"), py::arg("receiver"), py::arg("planner"),
           "The two-rank team over which `sender` sends to `receiver`.")
      .def(
          "window",
          [](const TeamCall& self, std::shared_ptr<Segment> segment, int64_t id, int64_t stride, int64_t bytes) {
            return std::make_shared<Window>(self.team(), required(std::move(segment)), id, stride, bytes);
          },
          py::arg("segment"), py::arg("id"), py::arg("stride"), py::arg("bytes"))
      .def(
          "place_of",
          [](const TeamCall& self, const py::object& x) {
            self.require_open();
            const ArrayView view = view_of(x, "x");
            const Location at = self.team()->place(view.data, view.bytes());
            return at.window == Location::kHeap ? "shared" : at.found() ? "window" : "plain";
          },
          py::arg("x"), "Where calls find an array: in a \"window\", \"shared\" as part of the heap, or \"plain\".")
      .def_property_readonly(
          "heap_problem", [](const TeamCall& self) { return self.team()->heap_problem(); },
          "Why a peer's heap could not be mapped; empty: no such problem.")
      .def("watch_peers", [](const TeamCall& self) { self.team()->watch_peers(); })
      .def("set_patience", &set_patience, py::arg("spin_us"), py::arg("yield_us"), py::arg("awake_us") = 0.0)
      .def(
          "require_sound",
          [](const TeamCall& self) {
            self.team()->poll_hosts();
            self.team()->require_sound();
          },
          "Raise the fault that poisoned the communicator, if any.")
      .def_property_readonly("poisoned",
                             [](const TeamCall& self) {
                               self.team()->poll_hosts();
                               return self.team()->poisoned();
                             })
      .def("report_lost", report(Fault::peer_lost), py::arg("rank"), py::arg("text"))
      .def("report_mismatch", report(Fault::mismatch), py::arg("rank"), py::arg("text"))
      .def("report_timeout", report(Fault::timeout), py::arg("rank"), py::arg("text"))
      .def(
          "give_up",
          [](const TeamCall& self, const std::string& text) {
            self.team()->poison({Fault::aborted, self.team()->rank(), text});
          },
          py::arg("text"))
      .def("close", &TeamCall::close, "Tell the peers that this rank has left; later calls raise.")
      .def("require_closable", &TeamCall::require_closable, "Raise if close() would wait for the calling thread.")
      .def_property(
          "tile_bytes",
          [](const TeamCall& self) {
            return std::make_pair(self.team()->tile_bytes.windows, self.team()->tile_bytes.staged);
          },
          &set_tile_bytes, "Set the tile size in bytes for windows and for staged arrays; the same on all ranks.")
      .def_property_readonly("scratch_bytes", [](const TeamCall& self) { return self.team()->capacity(); })
      .def_property_readonly("closed", &TeamCall::closed)
      .def("require_open", &TeamCall::require_open, "Raise if it has been closed, or belongs to a parent process.")
      .def(
          "require_turn", [](const TeamCall& self) { require_turn(*self.team()); },
          "Raise if the caller is already inside a call of the communicator.")
      .def(
          "gone",
          [](const TeamCall& self, int32_t rank) {
            self.team()->poll_hosts();
            return self.team()->gone(rank_in(self, rank));
          },
          py::arg("rank"))
      .def(
          "departed", [](const TeamCall& self, int32_t rank) { return self.team()->departed(rank_in(self, rank)); },
          py::arg("rank"))
      .def(
          "expel", [](const TeamCall& self, int32_t rank) { self.team()->expel(rank_in(self, rank)); }, py::arg("rank"),
          "Tell a rank that this one continues in a communicator without it.")
      .def_property_readonly("expelled", [](const TeamCall& self) { return self.team()->expelled(); })
      .def("watch_hosts", &watch_hosts, py::arg("hosts"), py::arg("names"), py::arg("numbers"),
           "Begin heartbeats with the ranks on other hosts. By rank: what identifies its host in the job, the host's "
           "name and number.")
      .def(
          "survivor",
          [](const TeamCall& self, int32_t rank) {
            return block_of(self, rank).survivor.load(std::memory_order_acquire);
          },
          py::arg("rank"))
      .def(
          "set_survivor",
          [](const TeamCall& self, uint32_t value) {
            self.team()->control().block(self.team()->rank()).survivor.store(value, std::memory_order_release);
          },
          py::arg("value"))
      .def(
          "mail", [](const TeamCall& self, int32_t rank) { return mail_of(*self.team(), rank_in(self, rank)); },
          py::arg("rank"))
      .def(
          "set_mail", [](const TeamCall& self, const std::string& text) { write_mail(*self.team(), text); },
          py::arg("text"))
      .def_property_readonly("spans_hosts", [](const TeamCall& self) { return self.team()->spans_hosts(); })
      .def_property_readonly("rank", [](const TeamCall& self) { return self.team()->rank(); })
      .def_property_readonly("size", [](const TeamCall& self) { return self.team()->size(); });
}

}  // namespace pc
