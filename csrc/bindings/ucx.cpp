// UCX, by which ranks on different hosts can be connected.
#include "link/ucx.h"

#include <algorithm>

#include "bindings/bindings.h"

namespace pc {

template <> inline constexpr bool is_bound<ucx::Devices> = true;
template <> inline constexpr bool is_bound<UcxWorker> = true;

namespace {

UcxSecret secret_of(const py::bytes& bytes) {
  const std::string_view text(bytes);
  UcxSecret secret{};
  if (text.size() != secret.size()) throw InvalidArgument("a secret has " + std::to_string(secret.size()) + " bytes");
  std::copy(text.begin(), text.end(), secret.begin());
  return secret;
}

}  // namespace

void bind_ucx(py::module_& m) {
  py::class_<ucx::Devices, std::shared_ptr<ucx::Devices>>(m, "UcxDevices", "UCX's transports and devices on this host.")
      .def(
          py::init([](const std::string& file, const ucx::Options& options) {
            return std::const_pointer_cast<ucx::Devices>(ucx::Devices::open(file, options));
          }),
          py::arg("file"), py::arg("options"),
          "file: libucp, as for dlopen(). options: names and values of UCX's settings, without the prefix UCX_. Raises "
          "OSError, with the reason.")
      .def_property_readonly("path", [](const ucx::Devices& self) { return self.library().path(); })
      .def_property_readonly("version", [](const ucx::Devices& self) { return self.library().version(); })
      .def_property_readonly("transports", &ucx::Devices::transports, "Each as TRANSPORT/DEVICE.");
  py::class_<UcxWorker, std::shared_ptr<UcxWorker>>(m, "UcxWorker", "The links of one rank of a communicator.")
      .def(py::init<std::shared_ptr<ucx::Devices>, int32_t, bool>(), py::arg("devices").none(false), py::arg("rank"),
           py::arg("shared_memory") = false, py::call_guard<py::gil_scoped_release>(),
           "shared_memory: whether the devices are; then UCX does not notice that a peer has gone.")
      .def_property_readonly("address", [](const UcxWorker& self) { return py::bytes(self.address()); })
      .def(
          "connect",
          [](UcxWorker& self, int32_t rank, const py::bytes& address, const py::bytes& sends,
             const py::bytes& expects) { self.connect(rank, address, secret_of(sends), secret_of(expects)); },
          py::arg("rank"), py::arg("address"), py::arg("sends"), py::arg("expects"),
          "With another rank. address: of its worker. sends, expects: the secrets at the beginning of each message, 16 "
          "bytes. The three come from that rank, over an authenticated connection; UCX trusts the address.")
      .def("synchronize", &UcxWorker::synchronize, py::arg("seconds"), py::call_guard<py::gil_scoped_release>(),
           "Exchange messages with all connected ranks; returns those that have not answered after so many seconds.")
      .def("close", &UcxWorker::close, py::call_guard<py::gil_scoped_release>());
}

}  // namespace pc
