// Python bindings of what an engine's ranks agree through: memory that they share, or messages.
#include "bindings/engine/carriers.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "bindings/engine/work.h"
#include "bindings/interpreter.h"
#include "window/segment.h"

namespace pc {

using engine::Board;
using engine::Carrier;
using engine::Details;
using engine::Rounds;

template <> inline constexpr bool is_bound<Details> = true;

namespace {

constexpr double kLongestWait = 1.0;  // seconds: the caller looks for faults in between

using FaultRow = std::tuple<std::string, std::string, int32_t>;  // class in pycollective.errors, text, culprit
using NewsRow = std::tuple<std::vector<py::bytes>, std::vector<std::pair<std::string, std::string>>,
                           std::optional<std::pair<int64_t, double>>, bool, std::optional<FaultRow>>;

std::shared_ptr<Board> make_board(const std::shared_ptr<Segment>& segment, int32_t rank, int32_t size, int32_t slots) {
  if (required(segment)->bytes() < Board::bytes(size, slots))
    throw InvalidArgument("the segment is smaller than a board of " + std::to_string(slots) + " slots for " +
                          std::to_string(size) + " ranks needs");
  if (rank < 0 || rank >= size) throw InvalidArgument("rank " + std::to_string(rank) + " of " + std::to_string(size));
  return std::make_shared<Board>(segment, segment->data(), rank, size, slots);
}

Carrier::Limit limit_in(double seconds) {
  if (std::isnan(seconds)) throw InvalidArgument("a wait of nan seconds");
  const std::chrono::duration<double> wait(std::clamp(seconds, 0.0, kLongestWait));
  return std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::nanoseconds>(wait);
}

NewsRow take_news(Rounds& self) {
  const Rounds::News news = self.take_news();
  std::optional<FaultRow> fault;
  if (news.fault) fault.emplace(class_of(news.fault->fault), news.fault->what(), news.fault->culprit);
  return {{news.announced.begin(), news.announced.end()}, news.refused, news.tuned, news.closing, fault};
}

void end(Rounds& self, const std::string& kind, const std::string& text, int32_t culprit) {
  constexpr std::array kinds{Fault::mismatch, Fault::timeout, Fault::peer_lost};
  const auto* found = std::find_if(kinds.begin(), kinds.end(), [&](Fault fault) { return kind == class_of(fault); });
  self.end({found != kinds.end() ? *found : Fault::aborted, culprit, text});
}

std::vector<py::bytes> announce_items(const std::vector<py::object>& items, int32_t size, bool grouped) {
  const uint64_t group = grouped ? group_of(items) : 0;
  const size_t together = grouped ? items.size() : 1;
  std::vector<py::bytes> announcements;
  for (const py::object& item : items) {
    Arrays arrays;  // checked here, used by Python
    announcements.emplace_back(engine::encode(read_announcement(item, size, group, together, arrays)));
  }
  return announcements;
}

// A method that waits, for Python: of seconds, and without the GIL.
template <class Result>
auto waits(Result (Rounds::*method)(Carrier::Limit)) {
  return [method](Rounds& self, double seconds) {
    const Released released;
    return (self.*method)(limit_in(seconds));
  };
}

void bind_rounds(py::module_& m) {
  py::class_<Rounds, Carrier, std::shared_ptr<Rounds>>(
      m, "Rounds", "Between hosts: what follows from the ranks' messages, the same on all ranks that receive the same.")
      .def(py::init<int32_t, std::vector<int32_t>, int64_t, double>(), py::arg("rank"), py::arg("world_ranks"),
           py::arg("threshold"), py::arg("cycle_seconds"), "`world_ranks`: the ranks' numbers in the world.")
      .def("await_news", waits(&Rounds::await_news), py::arg("seconds"),
           "Wait until this rank has something to tell, at most a second.")
      .def("await_caller", waits(&Rounds::await_caller), py::arg("seconds"),
           "Wait until a caller of this rank waits for an operation, at most a second.")
      .def("await_batches", waits(&Rounds::await_batches), py::arg("seconds"),
           "Wait until this rank has completed all batches, at most a second; returns whether it has.")
      .def("take_news", &take_news,
           "What this rank tells the others: (announcements, [(name, why it was refused)], (threshold, cycle in "
           "seconds) or None, whether it closes its engine, (class, text, rank) of a fault or None).")
      .def(
          "announce",
          [](Rounds& self, int32_t rank, const py::bytes& announcement) {
            self.announced(rank, engine::decode(std::string_view(announcement)));
          },
          py::arg("rank"), py::arg("announcement"), "Add a rank's announcement. Raises ValueError for an invalid one.")
      .def("refuse", &Rounds::refused, py::arg("rank"), py::arg("name"), py::arg("why"),
           "Report that a rank's submission was refused, and why.")
      .def("tune", &Rounds::tuned, py::arg("threshold"), py::arg("cycle_seconds"), "Set both, from the next cut on.")
      .def("cut", &Rounds::cut_all, "Cut the complete operations into batches.")
      .def("end", &end, py::arg("kind"), py::arg("text"), py::arg("culprit"),
           "Let what waits fail, once the batches have run, by a class in pycollective.errors.")
      .def("note_silence", &Rounds::note_silence, py::arg("ranks"), py::arg("since"),
           "Ranks that have not answered since a time of time.monotonic_ns(): for reports.")
      .def(
          "fetch",
          [](Rounds& self) {
            std::vector<Details> batch;
            for (const auto& member : self.fetch()) batch.push_back(*member.details);
            return batch;
          },
          "The next batch, as the engine fetches it; empty: there is none.")
      .def(
          "report",
          [](Rounds& self, double seconds, bool all) {
            return engine::list(self.stalls(seconds, all), [&](int32_t rank) { return self.number(rank); });
          },
          py::arg("seconds") = 0, py::arg("all") = true,
          "Operations that have waited for `seconds`, and for which ranks, a line each: all, or those that this rank "
          "reports.")
      .def_property_readonly("waiting", &Rounds::waiting, "Number of operations that some ranks have not announced.")
      .def_property_readonly("awaited", &Rounds::awaited, "Whether a caller of this rank waits for an operation.")
      .def_property_readonly("cycle_seconds", &Rounds::cycle_seconds);
}

}  // namespace

void bind_carriers(py::module_& m) {
  py::class_<Carrier, std::shared_ptr<Carrier>>(m, "Carrier",
                                                "One rank's end of what an engine's ranks agree through.");
  py::class_<Board, Carrier, std::shared_ptr<Board>>(m, "Board", "The carrier of ranks that share memory.")
      .def(py::init(&make_board), py::arg("segment"), py::arg("rank"), py::arg("size"), py::arg("slots"),
           "`segment`: the same of all ranks, initially zero.")
      .def_static("segment_bytes", &Board::bytes, py::arg("size"), py::arg("slots"))
      .def("prepare", &Board::prepare, "Called by one rank, before the others create their engines.");
  py::class_<Details>(m, "AgreedOperation", "An operation that all ranks have announced.")
      .def_readonly("name", &Details::name)
      .def_property_readonly("collective", [](const Details& self) { return engine::name_of(self.signature.kind); })
      .def_property_readonly(
          "device", [](const Details& self) { return self.signature.device; }, "Whether its arrays are in GPU memory.")
      .def_readonly("rows", &Details::rows, "The first extent of each rank's x; 0 for ranks that have joined.")
      .def_readonly("absent", &Details::absent, "Ranks that have joined and need not announce it.")
      .def_readonly("difference", &Details::difference, "How the ranks differ, as a message; empty if they agree.")
      .def_readonly("last", &Details::last, "The rank that announced it last.");
  bind_rounds(m);
  m.def("announcements", &announce_items, py::arg("items"), py::arg("size"), py::arg("grouped") = true,
        "This rank's announcements of items that are submitted as a group, or each for itself, among `size` ranks. "
        "Raises for an invalid item.");
}

}  // namespace pc
