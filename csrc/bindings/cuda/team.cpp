// Python bindings of one process's part of a communicator on GPUs.
#include "executor/cuda/team.h"

#include <algorithm>

#include "bindings/cuda/bindings.h"

namespace pc::cuda {
namespace {

CallKind kind_of(const std::string& dtype, int op, double prescale, double divisor, double postscale, bool reduces,
                 bool weighted, uint64_t digest) {
  const Dtype type = dtype_named(dtype);
  const auto operation = static_cast<Operator>(op);
  if (reduces && operation != Operator::custom && !takes(operation, type))
    throw WrongType(std::string("operator ") + name_of(operation) + " does not take " + dtype);
  return {type, operation, prescale, divisor, postscale, reduces, weighted, digest};
}

Table table_of(const py::buffer& buffer) {
  const py::buffer_info info = buffer.request();
  if (info.itemsize != 4 || info.ndim != 1 || (info.size > 1 && info.strides[0] != 4))
    throw InvalidArgument("a table is a flat, contiguous array of 32-bit integers");
  const auto* words = static_cast<const int32_t*>(info.ptr);
  return {words, words + info.size};
}

using Numbers = std::vector<int64_t>;
using Compilation = std::tuple<std::vector<py::buffer>, Numbers, Numbers, Numbers>;

Compiled compiled_of(const Compilation& c) {
  Compiled made{{}, std::get<1>(c), std::get<2>(c), std::get<3>(c)};
  for (const py::buffer& table : std::get<0>(c)) made.tables.push_back(table_of(table));
  return made;
}

using Exchanged = std::tuple<Numbers, Numbers, Numbers, Numbers>;

Exchange exchange_of(const Exchanged& numbers) {
  Exchange made{};
  const auto copy = [](const Numbers& from, int64_t (&into)[kMostRanks]) {
    if (from.size() > kMostRanks) throw InvalidArgument("at most 64 ranks");
    std::copy(from.begin(), from.end(), into);
  };
  copy(std::get<0>(numbers), made.send_offset);
  copy(std::get<1>(numbers), made.send_count);
  copy(std::get<2>(numbers), made.recv_offset);
  copy(std::get<3>(numbers), made.recv_count);
  return made;
}

py::object fault_of(const Team& team) {
  const auto fault = team.fault();
  if (!fault) return py::none();
  constexpr const char* names[] = {"none", "mismatch", "timeout", "aborted", "dropped"};
  const FaultRecord& r = fault->record;
  return py::make_tuple(names[static_cast<size_t>(fault->kind)], r.rank, r.peer, r.call, r.expected, r.found, r.base);
}

}  // namespace

void bind_cuda_team(py::module_& m) {
  const auto free_of_gil = py::call_guard<py::gil_scoped_release>();
  m.attr("MOST_RANKS") = kMostRanks;
  m.attr("MOST_VIRTUAL_RANKS") = kMostVirtual;
  py::class_<CustomOperator, std::shared_ptr<CustomOperator>>(m, "CustomOperator", py::module_local(),
                                                              "A user-defined operator, compiled for one element type.")
      .def("load", &CustomOperator::load, py::arg("device"), free_of_gil,
           "Load it on a device now; may wait until the device is idle.");
  py::class_<Plan, std::shared_ptr<Plan>>(m, "Plan", py::module_local(), py::release_gil_before_calling_cpp_dtor(),
                                          "The reusable part of a call.")
      .def_readonly("low_latency", &Plan::low_latency)
      .def_property_readonly("placement", [](const Plan& p) { return p.low_latency ? 0u : p.schedule.placement; })
      .def_readonly("channels", &Plan::most_channels, "Largest number of blocks of a rank.");

  py::class_<Team, std::shared_ptr<Team>>(m, "Team", py::module_local(), py::release_gil_before_calling_cpp_dtor(),
                                          "One process's part of a communicator on GPUs.")
      .def(py::init<int, int32_t, int32_t, int32_t, const std::vector<uintptr_t>&, int32_t, int64_t, bool, size_t>(),
           py::arg("device"), py::arg("size"), py::arg("first_rank"), py::arg("ranks_here"), py::arg("mailboxes"),
           py::arg("channels"), py::arg("scratch_bytes"), py::arg("shared"), py::arg("plan_bytes"), free_of_gil,
           "`shared`: the device also runs other ranks of the communicator. `plan_bytes`: size of the memory for plans "
           "to begin with.")
      .def_static("mailbox_bytes", &Team::mailbox_bytes, py::arg("size"), py::arg("channels"), py::arg("scratch_bytes"))
      .def_static("most_channels", &Team::most_channels, py::arg("device"), py::arg("sharing"),
                  "Blocks that each of `sharing` ranks on the device can run concurrently; 0: too many ranks.")
      .def_property_readonly("device", &Team::device)
      .def_property_readonly(
          "plan_memory",
          [](const Team& t) {
            const PlanPool::Use use = t.plan_memory();
            return py::make_tuple(use.capacity, use.taken);
          },
          "(bytes for plans, bytes in use).")
      .def_property_readonly("low_latency_bytes", &Team::low_latency_bytes,
                             "The longest message that the low-latency path supports.")
      .def_property_readonly(
          "low_latency_share", [](const Team&) { return kRun * kPacketBytes; },
          "Bytes of a message for each channel that it takes, up to low_latency_channels of them.")
      .def_property_readonly("low_latency_channels", &Team::low_latency_channels, "At most so many channels.")
      .def("add_window", &Team::add_window, py::arg("id"), py::arg("bases"), py::arg("nbytes"), free_of_gil)
      .def("remove_window", &Team::remove_window, py::arg("id"), free_of_gil,
           "Wait for the calls in flight, then remove the window.")
      .def("wait", &Team::wait, free_of_gil, "Wait for the calls in flight.")
      .def("end", &Team::end, free_of_gil, "Complete or abandon the calls in flight within seconds.")
      .def("idle", &Team::idle, free_of_gil, "Whether no call is in flight.")
      .def("locate", &Team::locate, py::arg("rank_index"), py::arg("address"), py::arg("nbytes"),
           "(window, offset) if the bytes are in a window of this rank, else None.")
      .def(
          "plan",
          [](const Team& self, const Compilation& schedule, const std::optional<Compilation>& fallback,
             const std::string& dtype, int op, std::shared_ptr<const CustomOperator> custom, double prescale,
             double divisor, double postscale, bool reduces, bool weighted, uint32_t placement, bool negotiates,
             uint64_t digest) {
            const CallKind work = kind_of(dtype, op, prescale, divisor, postscale, reduces, weighted, digest);
            const Compiled compiled = compiled_of(schedule), staged = fallback ? compiled_of(*fallback) : Compiled{};
            const py::gil_scoped_release release;
            return self.plan(compiled, staged, work, placement, negotiates, std::move(custom));
          },
          py::arg("schedule"), py::arg("fallback"), py::arg("dtype"), py::arg("op"), py::arg("custom"),
          py::arg("prescale"), py::arg("divisor"), py::arg("postscale"), py::arg("reduces"), py::arg("weighted"),
          py::arg("placement"), py::arg("negotiates"), py::arg("digest"),
          "A plan of a compiled schedule: (a table for each local rank, length, input offset and output offset of each "
          "chunk in elements); `fallback`: the same staged.")
      .def(
          "low_latency_plan",
          [](const Team& self, const std::string& dtype, int op, std::shared_ptr<const CustomOperator> custom,
             double prescale, double divisor, double postscale, bool reduces, const std::vector<Exchanged>& exchanges,
             int64_t longest, uint64_t digest) {
            const CallKind work = kind_of(dtype, op, prescale, divisor, postscale, reduces, false, digest);
            std::vector<Exchange> made;
            for (const Exchanged& numbers : exchanges) made.push_back(exchange_of(numbers));
            const py::gil_scoped_release release;
            return self.low_latency_plan(made, longest, work, std::move(custom));
          },
          py::arg("dtype"), py::arg("op"), py::arg("custom"), py::arg("prescale"), py::arg("divisor"),
          py::arg("postscale"), py::arg("reduces"), py::arg("exchanges"), py::arg("longest"), py::arg("digest"),
          "A plan of the low-latency path: for each local rank the offsets and counts that it sends to and receives "
          "from each rank, in elements; `longest`: the longest message of any pair.")
      .def(
          "run",
          [](Team& self, const std::shared_ptr<Plan>& plan, const std::vector<std::pair<uintptr_t, uintptr_t>>& pairs,
             uintptr_t stream, int32_t max_channels, double timeout,
             const std::vector<std::tuple<uintptr_t, uintptr_t, uintptr_t>>& copies) {
            if (plan == nullptr) throw py::type_error("a Plan is needed, not None");
            std::vector<Team::Buffers> buffers;
            for (const auto& [input, output] : pairs) buffers.push_back({input, output});
            std::vector<Team::Copied> copied;
            for (const auto& [into, from, bytes] : copies) copied.push_back({into, from, bytes});
            const py::gil_scoped_release release;
            self.run(plan, buffers, copied, reinterpret_cast<cudaStream_t>(stream), max_channels, timeout);
          },
          py::arg("plan"), py::arg("buffers"), py::arg("stream"), py::arg("max_channels"), py::arg("timeout"),
          py::arg("copies") = py::tuple(),
          "Enqueue a call on the stream: (input, output) addresses for each local rank. `copies`: (into, source, "
          "bytes) copies to run before it, after all earlier calls of the team.")
      .def("fault", &fault_of, "(kind, rank, peer, call, expected, found, base) of the first fault, or None.")
      .def("abort", &Team::abort, "Make the kernels in flight give up.");
}

}  // namespace pc::cuda
