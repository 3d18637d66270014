// The engine's agreement between hosts as Python sees it: messages in, batches out.
#include "engine/agreement.h"

#include "bindings/bindings.h"
#include "bindings/work.h"

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

std::vector<py::bytes> announce_items(const std::vector<py::object>& items, int32_t size) {
  const uint64_t group = group_of(items);
  std::vector<py::bytes> announcements;
  for (const py::object& item : items) {
    Arrays arrays;  // checked here, used by Python
    announcements.emplace_back(engine::encode(read_announcement(item, size, group, items.size(), arrays)));
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
          "Of its arrays; empty: it has none.")
      .def_property_readonly("shape", &agreed_shape, "Of each rank's x; the first extent is -1 where ranks may differ.")
      .def_property_readonly("count", &agreed_count, "Elements of x, where the whole shape is agreed.")
      .def_property_readonly("op", [=](const AgreedOperation& self) { return name_of(signature(self).op); })
      .def_property_readonly("prescale", [=](const AgreedOperation& self) { return signature(self).prescale; })
      .def_property_readonly("postscale", [=](const AgreedOperation& self) { return signature(self).postscale; })
      .def_property_readonly(
          "device", [=](const AgreedOperation& self) { return signature(self).device; }, "In GPU memory.")
      .def_readonly("rows", &AgreedOperation::rows, "The first extent of each rank's x; 0 for ranks that have joined.")
      .def_readonly("absent", &AgreedOperation::absent, "Ranks that need not announce it, having joined.")
      .def_readonly("difference", &AgreedOperation::difference, "How the ranks differ, for people; empty: they agree.")
      .def_property_readonly(
          "last", [](const AgreedOperation& self) { return self.round.last; }, "Who announced it last.");
  py::class_<Agreement>(m, "Agreement",
                        "What follows from the ranks' announcements: the same on all ranks that hear the same.")
      .def(py::init<std::vector<int32_t>>(), py::arg("world_ranks"), "`world_ranks`: of the ranks.")
      .def(
          "announce",
          [](Agreement& self, int32_t rank, const py::bytes& announcement) {
            self.announce(rank, engine::decode(std::string_view(announcement)));
          },
          py::arg("rank"), py::arg("announcement"),
          "What a rank announces. Raises ValueError for what no rank can announce.")
      .def("cut", &Agreement::cut, py::arg("threshold"),
           "All that is complete, in batches of operations that are fused: up to `threshold` bytes.")
      .def_property_readonly("waiting", &Agreement::waiting, "Operations that some ranks have not announced.")
      .def("report", &Agreement::report, py::arg("seconds") = 0, py::arg("reporter") = -1,
           "Operations that have waited for `seconds`, and for which ranks, a line each; of a rank only those that it "
           "reports.");
  m.def(
      "announcements", &announce_items, py::arg("items"), py::arg("size"),
      "What this rank announces of items that it submits together, among `size` ranks. Raises what is wrong with one.");
}

}  // namespace pc
