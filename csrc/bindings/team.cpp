// One rank's end of a communicator, as Python sees it: arrays in, schedule run, result out.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstring>
#include <numeric>
#include <unordered_map>

#include "base/environment.h"
#include "bindings/bindings.h"
#include "bindings/handle.h"
#include "bindings/interpreter.h"
#include "bindings/team_call.h"

namespace pc {
namespace {

// A window's memory; the arrays made in it hold it.
class Window {
 public:
  Window(std::shared_ptr<Team> team, std::shared_ptr<Segment> segment, int64_t id, int64_t stride, int64_t bytes)
      : team_(std::move(team)), segment_(std::move(segment)), id_(id), stride_(stride) {
    team_->add_window(id, {segment_->data(), stride}, bytes);
  }
  ~Window() { team_->remove_window(id_); }
  char* data() const { return segment_->data() + team_->rank() * stride_; }

 private:
  std::shared_ptr<Team> team_;
  std::shared_ptr<Segment> segment_;
  int64_t id_;
  int64_t stride_;
};

std::string mail_of(const Team& team, int32_t rank) {
  const char* mail = team.control().blocks[rank].mail;
  return {mail, strnlen(mail, sizeof RankBlock::mail)};
}

void write_mail(const Team& team, const std::string& text) {
  if (text.size() >= sizeof RankBlock::mail) throw InvalidArgument("mail too long");
  std::strcpy(team.control().blocks[team.rank()].mail, text.c_str());
}

}  // namespace

void bind_team(py::module_& m) {
  m.attr("ALWAYS_STAGED") = kAlwaysStaged;
  py::module_::import("atexit").attr("register")(py::cpp_function(python_ends));
  py::class_<Window, std::shared_ptr<Window>>(m, "Window", "A symmetric allocation.")
      .def(
          "array",
          [](const py::object& self, const py::dtype& dtype, const std::vector<py::ssize_t>& shape) {
            return py::array(dtype, shape, self.cast<const Window&>().data(), self);
          },
          py::arg("dtype"), py::arg("shape"), "This rank's part as a NumPy array.");

  py::class_<TeamCall>(m, "Team", "One rank's end of a communicator on one host.")
      .def(py::init<std::shared_ptr<Segment>, int32_t, int32_t, int64_t, std::vector<int32_t>, std::string, bool,
                    py::object>(),
           py::arg("segment"), py::arg("rank"), py::arg("size"), py::arg("scratch_bytes"), py::arg("world_ranks"),
           py::arg("name"), py::arg("threads"), py::arg("planner"))
      .def_static("segment_bytes", &Team::segment_bytes, py::arg("size"), py::arg("scratch_bytes"))
      .def("call", &TeamCall::call, py::arg("collective"), py::arg("x"), py::arg("out"), py::arg("op"),
           py::arg("topology"), py::arg("root"), py::arg("counts"), py::arg("scale"), py::arg("timeout"),
           py::arg("nonblocking"), "Run one collective; returns its result, or a Handle.")
      .def("channel", &TeamCall::channel, py::arg("sender"), py::arg("receiver"), py::arg("planner"),
           "The team of two over which `sender` sends to `receiver`.")
      .def(
          "window",
          [](const TeamCall& self, std::shared_ptr<Segment> segment, int64_t id, int64_t stride, int64_t bytes) {
            return std::make_shared<Window>(self.team(), std::move(segment), id, stride, bytes);
          },
          py::arg("segment"), py::arg("id"), py::arg("stride"), py::arg("bytes"))
      .def(
          "in_window",
          [](const TeamCall& self, const py::object& x) {
            const ArrayView view = view_of(x, "x");
            return self.team()->locate(view.data, view.count * size_of(view.dtype)).window >= 0;
          },
          py::arg("x"))
      .def("watch_peers", [](const TeamCall& self) { self.team()->watch_peers(); })
      .def(
          "set_patience",
          [](const TeamCall& self, double spin_us, double yield_us) {
            const auto to = [](double us) { return std::chrono::nanoseconds(static_cast<int64_t>(us * 1e3)); };
            self.team()->patience = {to(spin_us), to(yield_us)};
          },
          py::arg("spin_us"), py::arg("yield_us"))
      .def(
          "require_sound", [](const TeamCall& self) { self.team()->require_sound(); },
          "Raise what poisoned the communicator, if anything did.")
      .def_property_readonly("poisoned", [](const TeamCall& self) { return self.team()->poisoned(); })
      .def(
          "report_lost",
          [](const TeamCall& self, int32_t rank, const std::string& text) {
            self.team()->poison(Fault::peer_lost, rank, text);
          },
          py::arg("rank"), py::arg("text"))
      .def(
          "report_mismatch",
          [](const TeamCall& self, int32_t rank, const std::string& text) {
            self.team()->poison(Fault::mismatch, rank, text);
          },
          py::arg("rank"), py::arg("text"))
      .def(
          "report_timeout",
          [](const TeamCall& self, int32_t rank, const std::string& text) {
            self.team()->poison(Fault::timeout, rank, text);
          },
          py::arg("rank"), py::arg("text"))
      .def(
          "give_up",
          [](const TeamCall& self, const std::string& text) {
            self.team()->poison(Fault::aborted, self.team()->rank(), text);
          },
          py::arg("text"))
      .def("close", &TeamCall::close, "Say goodbye to the peers; later calls raise.")
      .def_property(
          "tile_bytes",
          [](const TeamCall& self) {
            return std::make_pair(self.team()->tile_bytes.windows, self.team()->tile_bytes.staged);
          },
          [](const TeamCall& self, std::pair<double, double> bytes) {
            self.team()->tile_bytes = {bytes.first, bytes.second};
          },
          "Bytes of a tile on windows and on staged arrays; the same on all ranks.")
      .def_property_readonly("scratch_bytes", [](const TeamCall& self) { return self.team()->capacity(); })
      .def_property_readonly("closed", &TeamCall::closed)
      .def("require_open", &TeamCall::require_open, "Raise if it was closed, or belongs to a parent process.")
      .def(
          "gone", [](const TeamCall& self, int32_t rank) { return self.team()->gone(rank); }, py::arg("rank"))
      .def(
          "departed",
          [](const TeamCall& self, int32_t rank) {
            return self.team()->control().blocks[rank].presence.load() == static_cast<uint32_t>(Presence::departed);
          },
          py::arg("rank"))
      .def(
          "survivor",
          [](const TeamCall& self, int32_t rank) {
            return self.team()->control().blocks[rank].survivor.load(std::memory_order_acquire);
          },
          py::arg("rank"))
      .def(
          "set_survivor",
          [](const TeamCall& self, uint32_t value) {
            self.team()->control().blocks[self.team()->rank()].survivor.store(value, std::memory_order_release);
          },
          py::arg("value"))
      .def(
          "mail", [](const TeamCall& self, int32_t rank) { return mail_of(*self.team(), rank); }, py::arg("rank"))
      .def(
          "set_mail", [](const TeamCall& self, const std::string& text) { write_mail(*self.team(), text); },
          py::arg("text"))
      .def_property_readonly("rank", [](const TeamCall& self) { return self.team()->rank(); })
      .def_property_readonly("size", [](const TeamCall& self) { return self.team()->size(); });
}

}  // namespace pc
