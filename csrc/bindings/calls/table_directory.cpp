#include "executor/table_directory.h"

#include "bindings/bindings.h"
#include "bindings/calls/team_call.h"
#include "bindings/interpreter.h"

namespace pc {
namespace {

// A directory with the team whose ranks share it, which knows their processes.
class TeamDirectory {
 public:
  TeamDirectory(const TeamCall& call, size_t offset)
      : team_(call.team()), directory_(team_->segment(), offset, team_->rank()) {}

  std::optional<std::pair<std::string, size_t>> acquire(uint64_t key) {
    const auto found = [&] {
      const Released released;
      return directory_.acquire(
          key, [this](int32_t rank) { return rank >= team_->size() || team_->gone(rank) || team_->stopped(rank); },
          [this] {
            team_->require_sound();
            if (Team::interrupted && Team::interrupted()) throw Interrupted();
          });
    };
    try {
      if (const auto tables = found()) return std::pair{tables->token, tables->bytes};
      return std::nullopt;
    } catch (const Interrupted&) {
      throw py::error_already_set();  // raised by a signal handler
    }
  }
  void publish(uint64_t key, const std::string& token, size_t bytes) { directory_.publish(key, {token, bytes}); }
  void fail(uint64_t key) { directory_.fail(key); }
  void note_taken(uint64_t key) { directory_.note_taken(key); }
  uint32_t taken(uint64_t key) { return directory_.taken(key); }

 private:
  struct Interrupted {};
  std::shared_ptr<Team> team_;
  TableDirectory directory_;
};

}  // namespace

template <> inline constexpr bool is_bound<TeamDirectory> = true;

void bind_table_directory(py::module_& m) {
  py::class_<TeamDirectory>(m, "TableDirectory", "Which rank compiles a schedule for all, and where its tables are.")
      .def(py::init<const TeamCall&, size_t>(), py::arg("team"), py::arg("offset"),
           "offset: of segment_bytes() unused bytes in the team's segment.")
      .def_static("segment_bytes", &TableDirectory::segment_bytes)
      .def("acquire", &TeamDirectory::acquire, py::arg("key"),
           "Token and size of the segment with the tables; an empty token if this rank is to compile and publish them; "
           "None if it should compile for itself. Blocks while another rank compiles.")
      .def("publish", &TeamDirectory::publish, py::arg("key"), py::arg("token"), py::arg("bytes"))
      .def("fail", &TeamDirectory::fail, py::arg("key"), "This rank cannot compile it for the others.")
      .def("note_taken", &TeamDirectory::note_taken, py::arg("key"), "This rank has read its table.")
      .def("taken", &TeamDirectory::taken, py::arg("key"), "How many ranks have read theirs.");
}

}  // namespace pc
