#include "bindings/engine/work.h"

#include <pybind11/numpy.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "base/checked.h"
#include "bindings/interpreter.h"
#include "dtype/kernels.h"

namespace pc {

using engine::Announcement;
using engine::Pending;

// Waits in short intervals, so that Ctrl-C is handled.
void await(engine::Engine& engine, const std::shared_ptr<Pending>& pending, std::optional<double> timeout,
           bool flushed) {
  if (pending->done()) return;
  const auto start = Clock::now();
  auto end = Clock::time_point::max();
  if (timeout) {
    const std::chrono::duration<double> seconds(std::clamp(*timeout, 0.0, 1e9));
    end = start + std::chrono::duration_cast<Clock::duration>(seconds);
  }
  for (;;) {
    bool through = false;
    {
      const Released released;
      const auto limit = std::min(end, Clock::now() + std::chrono::milliseconds(100));
      through = engine.wait(pending, limit, !flushed);
    }
    if (through) return;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    if (Clock::now() < end) continue;
    const py::object type = py::module_::import("pycollective.errors").attr("TimeoutError");
    PyErr_SetString(type.ptr(),
                    ("operation '" + pending->name() + "' has not completed yet; it can be waited for again").c_str());
    throw py::error_already_set();
  }
}

py::object Work::wait(std::optional<double> timeout) const {
  if (timeout && std::isnan(*timeout)) throw InvalidArgument("timeout must be a number of seconds, not nan");
  await(*engine_, pending, timeout, false);
  engine_->take_spent();
  if (pending->fault()) throw CommunicatorFault(*pending->fault());
  if (!error.is_none()) {
    PyErr_SetObject(py::type::handle_of(error).ptr(), error.ptr());
    throw py::error_already_set();
  }
  if (!on_wait.is_none()) on_wait();
  return pending->number() >= 0 ? py::cast(pending->number()) : result;
}

void Work::when_done(py::object callback) {
  callbacks_.push_back(std::move(callback));
  pending->watched.store(true, std::memory_order_seq_cst);
  if (done()) call_back();
}

// As a thread that waits does, for callers that cannot: operations are otherwise held back to be fused with later ones.
void Work::flush() const {
  const Released released;
  engine_->flush(*pending, Clock::now() + std::chrono::milliseconds(100));
}

// Each callback is called once: the first thread to get here takes them all.
void Work::call_back() {
  for (const py::object& callback : std::exchange(callbacks_, {})) {
    try {
      callback();
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("a callback of pycollective's engine");
    }
  }
}

std::shared_ptr<Work> work_of(const std::shared_ptr<void>& kept) { return std::static_pointer_cast<Work>(kept); }

// -- from an item to an announcement ------------------------------------------------------------------------------

namespace {

// An attribute by a literal. Python would create a string of its name each time; a submit reads a dozen per item.
py::object get(const py::handle& object, const char* name) {
  static auto& names = *new std::unordered_map<const char*, PyObject*>;  // outlives the interpreter; guarded by the GIL
  PyObject*& interned = names[name];
  if (interned == nullptr) interned = PyUnicode_InternFromString(name);
  PyObject* found = PyObject_GetAttr(object.ptr(), interned);
  if (found == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(found);
}

engine::Kind kind_named(const std::string& name) {
  const auto kind = find_named<engine::Kind>(name);
  if (kind == engine::Kind::count) throw InvalidArgument("the engine has no collective '" + name + "'");
  return kind;
}

std::string item_name(const py::object& item) {
  const py::object name = get(item, "name");
  if (!py::isinstance<py::str>(name))
    throw WrongType(std::string("an operation's name is a str, not ") + Py_TYPE(name.ptr())->tp_name);
  return name.cast<std::string>();
}

ArrayView adapt(py::object array, const char* what, Arrays& arrays) {
  ArrayView view;
  if (!is_numpy(array) && glance(array, view)) return view;  // kept alive by the item
  if (!is_numpy(array) && !py::isinstance<Buffer>(array)) array = py::cast(std::make_shared<Buffer>(array));
  arrays.held.push_back(array);
  return view_of(array, what);
}

// `bytes`: size of the array, from its buffer. The executor uses the shape, so both must agree.
void set_shape(std::span<const int64_t> extents, int64_t bytes, Announcement& announcement) {
  auto& s = announcement.signature;
  const auto element = static_cast<int64_t>(size_of(s.dtype));
  const int64_t count = checked_count(extents, element, "the array's shape");
  if (count * element != bytes)
    throw InvalidArgument("an array of " + std::to_string(bytes) + " bytes has a shape of " + std::to_string(count) +
                          " elements of " + std::to_string(element) + " bytes");
  s.dims = 0;
  s.shape = {};
  for (const int64_t extent : extents) {
    if (s.dims < engine::kMostDims) s.shape[s.dims] = extent;
    else s.shape[engine::kMostDims - 1] = count == 0 ? 0 : s.shape[engine::kMostDims - 1] * extent;
    ++s.dims;
  }
  announcement.rows = s.dims > 0 ? s.shape[0] : 1;
  if (s.dims > 0 && engine::traits(s.kind).rows_differ) s.shape[0] = -1;
}

void read_shape(const py::handle& item, const py::handle& array, int64_t bytes, Announcement& announcement) {
  std::vector<int64_t> extents;
  for (const py::handle extent : get(array, "shape")) extents.push_back(extent.cast<int64_t>());
  set_shape(extents, bytes, announcement);
  const py::object axes = get(item, "axes");
  if (axes.is_none()) return;
  uint32_t shift = 0;
  for (const int64_t axis : axes.cast<std::vector<int64_t>>()) {
    if (axis < 0 || axis >= engine::kMostDims || shift >= 32)
      throw InvalidArgument("axes: a permutation of at most " + std::to_string(engine::kMostDims) + " axes");
    announcement.signature.axes |= static_cast<uint32_t>(axis + 1) << shift;
    shift += 4;
  }
}

}  // namespace

Operator operator_named(const std::string& name) {
  const auto op = find_named<Operator>(name);
  if (op >= Operator::custom) throw InvalidArgument("the engine has no operator '" + name + "'");
  return op;
}

void set_array(Announcement& announcement, const ArrayView& array, std::span<const int64_t> shape) {
  announcement.signature.dtype = array.dtype;
  announcement.bytes = array.bytes();
  set_shape(shape, announcement.bytes, announcement);
}

void check_operator(const engine::Signature& s) {
  const Kernel kernel = kernel_for(s.dtype, s.op);
  if (kernel.plain == nullptr)
    throw WrongType(std::string("operator ") + name_of(s.op) + " does not take " + name_of(s.dtype));
  if ((s.prescale != 1.0 || s.postscale != 1.0) && kernel.scaled == nullptr)
    throw WrongType(std::string("operator ") + name_of(s.op) + " on " + name_of(s.dtype) +
                    " takes no prescale or postscale");
}

// In the ranks' windows, if an array in one is reduced in place; else -1.
int64_t place_of(const Team& team, const char* input, const char* output, int64_t bytes) {
  if (input != output || bytes == 0) return -1;
  const Location at = team.locate(output, bytes);
  return at.window < 0 ? -1 : at.window << 40 | at.offset;
}

uint64_t group_of(const std::vector<py::object>& items) {
  std::vector<std::string> names;
  if (items.size() > 1)
    for (const py::object& item : items) names.push_back(item_name(item));
  return engine::group_of(names);
}

Announcement read_announcement(const py::object& item, int32_t size, uint64_t group, size_t together, Arrays& arrays) {
  Announcement announcement;
  announcement.name = item_name(item);
  auto& s = announcement.signature;
  s.kind = kind_named(get(item, "collective").cast<std::string>());
  s.group = group;
  s.together = static_cast<int32_t>(together);
  announcement.priority = get(item, "priority").cast<int32_t>();
  const py::object x = get(item, "x");
  if (const py::object gpu = get(item, "gpu"); !gpu.is_none()) {  // only Python reads the memory
    s.device = true;
    s.dtype = dtype_named(get(gpu, "element").cast<std::string>());
    announcement.bytes = get(gpu, "nbytes").cast<int64_t>();
    read_shape(item, x, announcement.bytes, announcement);
    announcement.place = get(gpu, "place").cast<int64_t>();
  } else if (!x.is_none()) {
    const ArrayView view = adapt(x, "x", arrays);
    s.dtype = view.dtype;
    announcement.bytes = view.count * static_cast<int64_t>(size_of(view.dtype));
    read_shape(item, x, announcement.bytes, announcement);
    arrays.input = view.data;
  }
  const engine::KindTraits& kind = engine::traits(s.kind);
  if (kind.rooted) s.root = get(item, "root").cast<int32_t>();
  if (kind.rooted && (s.root < 0 || s.root >= size))
    throw InvalidArgument("root " + std::to_string(s.root) + " is not a rank of this communicator of " +
                          std::to_string(size));
  if (kind.reduces) {
    s.op = operator_named(get(item, "op").cast<std::string>());
    s.prescale = get(item, "prescale").cast<double>();
    s.postscale = get(item, "postscale").cast<double>();
    check_operator(s);
  }
  if (s.is_of_core()) {
    const ArrayView out = adapt(get(item, "out"), "out", arrays);
    if (!out.writable) throw InvalidArgument("out is read-only");
    if (out.dtype != s.dtype) throw WrongType("x and out differ in their element types");
    if (out.count * static_cast<int64_t>(size_of(out.dtype)) != announcement.bytes)
      throw InvalidArgument("x and out differ in size");
    arrays.output = out.data;
  }
  return announcement;
}

std::shared_ptr<Pending> read_item(const std::shared_ptr<Work>& work, const Team& team, uint64_t group,
                                   size_t together) {
  Arrays& arrays = work->arrays;
  Announcement announcement = read_announcement(work->item, team.size(), group, together, arrays);
  if (announcement.signature.is_of_core()) {
    work->result = get(work->item, "out");
    announcement.place = place_of(team, arrays.input, arrays.output, announcement.bytes);
  }
  return std::make_shared<Pending>(std::move(announcement), arrays.input, arrays.output, work);
}

}  // namespace pc
