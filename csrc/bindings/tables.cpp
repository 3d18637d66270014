// The element types, operators and settings, for Python, the tests and the documentation.
#include "base/environment.h"
#include "bindings/bindings.h"
#include "dtype/kernels.h"
#include "executor/control.h"

namespace pc {
namespace {

// In numerical order.
template <class Enum>
std::vector<std::string> names() {
  std::vector<std::string> found;
  for (size_t i = 0; i < static_cast<size_t>(Enum::count); ++i) found.emplace_back(name_of(static_cast<Enum>(i)));
  return found;
}

// (name, meaning), in numerical order.
std::vector<std::pair<std::string, std::string>> operators() {
  std::vector<std::pair<std::string, std::string>> table;
#define PC_ROW(name, functor, kinds, meaning) table.emplace_back(#name, meaning);
  PC_OPERATORS(PC_ROW)
#undef PC_ROW
  return table;
}

std::vector<std::tuple<std::string, double, double, std::string>> settings() {
  std::vector<std::tuple<std::string, double, double, std::string>> rows;
#define PC_ROW(field, name, fallback, expected, unit, meaning) \
  rows.emplace_back(name, fallback, environment().field, meaning);
  PC_ENVIRONMENT(PC_ROW)
#undef PC_ROW
  return rows;
}

// Reduces arrays of this process into all of `outs` in one pass with the executor's vector code.
void combine(const std::string& op, const std::vector<py::object>& sources, const std::vector<py::object>& outs,
             bool streamed, double prescale, double postscale, const std::vector<double>& weights) {
  if (sources.empty() || outs.empty()) throw py::value_error("nothing to combine");
  const ArrayView first = view_of(sources[0], "source");
  std::vector<const void*> from;
  std::vector<void*> into;
  const auto view_like_first = [&](const py::object& array, const char* what) {
    const ArrayView view = view_of(array, what);
    if (view.dtype != first.dtype || view.count != first.count) throw py::value_error("arrays differ in dtype or size");
    return view;
  };
  for (const py::object& source : sources) from.push_back(view_like_first(source, "source").data);
  for (const py::object& out : outs) {
    const ArrayView view = view_like_first(out, "out");
    if (!view.writable) throw py::value_error("out is read-only");
    into.push_back(view.data);
  }
  const auto number = find_named<Operator>(op);
  const Kernel kernel = kernel_for(first.dtype, number);
  Scaling scaling{prescale, 1.0, postscale};
  if (number == Operator::avg) scaling.divisor = static_cast<double>(from.size());
  if (kernel.plain == nullptr) throw py::value_error("no such operator for this type: " + op);
  if (!weights.empty() && (weights.size() != from.size() || scaling.active()))
    throw py::value_error("weights: one for each source, without prescale and postscale");
  const Combine run = !weights.empty() ? kernel.weighted : scaling.active() ? kernel.scaled : kernel.plain;
  if (run == nullptr) throw WrongType("operator " + op + " on " + name_of(first.dtype) + " takes no factors");
  const auto initial = std::make_unique<bool[]>(from.size());
  std::fill_n(initial.get(), from.size(), true);
  const auto stream = std::make_unique<bool[]>(into.size());
  std::fill_n(stream.get(), into.size(), true);
  const py::gil_scoped_release release;
  run({from.data(), initial.get(), into.data(), static_cast<int>(from.size()), static_cast<int>(into.size()),
       static_cast<size_t>(first.count), true, &scaling, nullptr, streamed ? stream.get() : nullptr,
       weights.empty() ? nullptr : weights.data()});
}

bool takes_name(const std::string& op, const std::string& dtype) {
  return takes(find_named<Operator>(op), find_dtype(dtype));
}

}  // namespace

void bind_tables(py::module_& m) {
  m.def("dtypes", &names<Dtype>, "Names of the element types.");
  m.def("operators", &operators, "(name, meaning) of the reduction operators, in numerical order.");
  m.def("collectives", &names<Collective>, "Names of the collectives, in numerical order.");
  m.def("takes", &takes_name, py::arg("op"), py::arg("dtype"), "Whether the operator supports the element type.");
  m.def("settings", &settings, "(variable, default, value, meaning) of each environment variable.");
  m.def("instruction_set", &instruction_set, "Vector code in use: baseline, avx2 or avx512.");
  m.def("combine", &combine, py::arg("op"), py::arg("sources"), py::arg("outs"), py::arg("streamed") = false,
        py::arg("prescale") = 1.0, py::arg("postscale") = 1.0, py::arg("weights") = std::vector<double>(),
        "Reduce local arrays into all of `outs` with the executor's vector code; `streamed`: bypass the caches. "
        "`prescale`: a factor on each array; `postscale`: on the result; `weights`: a factor for each array.");
}

}  // namespace pc
