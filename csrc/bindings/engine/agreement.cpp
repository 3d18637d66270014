// Python bindings of the engine's agreement between hosts: messages in, batches out.
#include "engine/negotiation/agreement.h"

#include "bindings/bindings.h"
#include "bindings/engine/work.h"

namespace pc {

using engine::AgreedOperation;
using engine::Agreement;

template <> inline constexpr bool is_bound<Agreement> = true;
template <> inline constexpr bool is_bound<AgreedOperation> = true;

namespace {

std::vector<int64_t> agreed_shape(const AgreedOperation& operation) {
  const auto& s = operation.round.signature;
  return {s.shape.begin(), s.shape.begin() + std::min(s.dims, engine::kMostDims)};
}

int64_t agreed_count(const AgreedOperation& operation) {
  int64_t count = 1;
  for (const int64_t extent : agreed_shape(operation)) count *= extent;
  return count;
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

}  // namespace

void bind_agreement(py::module_& m) {
  const auto signature = [](const AgreedOperation& operation) -> const engine::Signature& {
    return operation.round.signature;
  };
  py::class_<AgreedOperation>(m, "AgreedOperation", "An operation that all ranks have announced.")
      .def_readonly("name", &AgreedOperation::name)
      .def_property_readonly("collective",
                             [=](const AgreedOperation& self) { return engine::name_of(signature(self).kind); })
      .def_property_readonly(
          "dtype",
          [=](const AgreedOperation& self) {
            return signature(self).dtype == Dtype::count ? "" : name_of(signature(self).dtype);
          },
          "Element type of its arrays; empty if it has none.")
      .def_property_readonly("shape", &agreed_shape,
                             "Shape of each rank's x; the first extent is -1 if ranks may differ.")
      .def_property_readonly("count", &agreed_count, "Elements of x, if all extents are agreed.")
      .def_property_readonly("op", [=](const AgreedOperation& self) { return name_of(signature(self).op); })
      .def_property_readonly("prescale", [=](const AgreedOperation& self) { return signature(self).prescale; })
      .def_property_readonly("postscale", [=](const AgreedOperation& self) { return signature(self).postscale; })
      .def_property_readonly(
          "device", [=](const AgreedOperation& self) { return signature(self).device; },
          "Whether its arrays are in GPU memory.")
      .def_readonly("rows", &AgreedOperation::rows, "The first extent of each rank's x; 0 for ranks that have joined.")
      .def_readonly("absent", &AgreedOperation::absent, "Ranks that have joined and need not announce it.")
      .def_readonly("difference", &AgreedOperation::difference,
                    "How the ranks differ, as a message; empty if they agree.")
      .def_property_readonly(
          "last", [](const AgreedOperation& self) { return self.round.last; }, "The rank that announced it last.");
  py::class_<Agreement>(m, "Agreement",
                        "What follows from the ranks' announcements: the same on all ranks that receive the same.")
      .def(py::init<std::vector<int32_t>>(), py::arg("world_ranks"), "`world_ranks`: the ranks' numbers in the world.")
      .def(
          "announce",
          [](Agreement& self, int32_t rank, const py::bytes& announcement) {
            self.announce(rank, engine::decode(std::string_view(announcement)));
          },
          py::arg("rank"), py::arg("announcement"), "Add a rank's announcement. Raises ValueError for an invalid one.")
      .def(
          "refuse",
          [](Agreement& self, int32_t rank, std::string name, std::string why) {
            self.refuse({rank, std::move(name), std::move(why)});
          },
          py::arg("rank"), py::arg("name"), py::arg("why"), "Report that a rank's submission was refused, and why.")
      .def("cut", &Agreement::cut, py::arg("threshold"),
           "The complete operations, in batches that are fused: up to `threshold` bytes each.")
      .def_property_readonly("waiting", &Agreement::waiting, "Number of operations that some ranks have not announced.")
      .def("report", &Agreement::report, py::arg("seconds") = 0, py::arg("reporter") = -1,
           "Operations that have waited for `seconds`, and for which ranks, a line each; of a rank only those that it "
           "reports.");
  m.def("announcements", &announce_items, py::arg("items"), py::arg("size"), py::arg("grouped") = true,
        "This rank's announcements of items that are submitted as a group, or each for itself, among `size` ranks. "
        "Raises for an invalid item.");
}

}  // namespace pc
