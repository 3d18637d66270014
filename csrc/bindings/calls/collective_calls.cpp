// The calls of a communicator's methods: what their arguments mean, for arrays of any library.
//
// C code reads the arrays of NumPy, of torch, and of other libraries with DLPack's C exchange API.  Of the rest, Python
// adapts those in CPU memory (arrays.adapted), and makes the calls on those in GPU memory (device_calls.py).
#include <cstring>
#include <span>

#include "base/checked.h"
#include "bindings/calls/team_call.h"

namespace pc {
namespace {

using Shape = std::span<const int64_t>;

constexpr auto kArrays = "pycollective.comm.arguments.arrays", kNumbers = "pycollective.comm.arguments.numbers",
               kDevice = "pycollective.comm.device_calls";

py::object python(const char* module, const char* name) { return py::module_::import(module).attr(name); }

bool given(py::handle argument) { return argument && !argument.is_none(); }

py::object or_none(py::handle argument) { return argument ? py::reinterpret_borrow<py::object>(argument) : py::none(); }

py::tuple tuple_of(Shape numbers) {
  py::tuple made(numbers.size());
  for (size_t i = 0; i < numbers.size(); ++i) made[i] = numbers[i];
  return made;
}

std::string text_of(const std::vector<int64_t>& numbers) { return py::str(py::cast(numbers)).cast<std::string>(); }

int32_t rank_number(py::handle rank, const char* name) {
  if (const auto number = plain_int(rank)) return *number;
  return python(kNumbers, "rank_number")(rank, name).cast<int32_t>();
}

[[gnu::noinline]] double read_factor(py::handle factor, const char* name) {
  if (PyFloat_CheckExact(factor.ptr())) return PyFloat_AS_DOUBLE(factor.ptr());
  return python(kNumbers, "factor")(factor, name).cast<double>();
}

inline double factor_of(py::handle factor, const char* name) { return factor ? read_factor(factor, name) : 1.0; }

// A number of rows for each rank.
std::vector<int64_t> row_counts(py::handle counts, const char* name, int32_t size) {
  std::vector<int64_t> values;
  if (PyList_CheckExact(counts.ptr()) || PyTuple_CheckExact(counts.ptr())) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(counts.ptr()); ++i) {
      PyObject* item = PySequence_Fast_GET_ITEM(counts.ptr(), i);
      int overflow = 0;
      const int64_t value = PyLong_CheckExact(item) ? PyLong_AsLongLongAndOverflow(item, &overflow) : -1;
      if (value < 0) break;  // also if it overflows
      values.push_back(value);
    }
    if (values.size() == static_cast<size_t>(size)) return values;
  }
  return read_counts(python(kNumbers, "row_counts")(counts, name, size), name);
}

int64_t rows_of(Shape shape) { return shape.empty() ? 1 : shape[0]; }

bool add_up(const std::vector<int64_t>& numbers, int64_t sum) {
  for (const int64_t number : numbers) {
    if (number > sum) return false;
    sum -= number;
  }
  return sum == 0;
}

// Throws if the call has options that only GPU arrays take.
void require_no_stream(const CallArguments& call) {
  for (const auto& [name, option] : {std::pair{"stream", call.stream}, {"max_channels", call.max_channels}})
    if (given(option)) throw InvalidArgument(std::string(name) + " is for GPU arrays; these are in CPU memory");
}

void add_match(std::string& note, py::handle match) {
  if (given(match)) note = python(kNumbers, "with_match")(note, match).cast<std::string>();
}

py::dict options_of(const CallArguments& call) {
  py::dict options;
  for (const auto& [name, option] : {std::pair{"op", call.op},
                                     {"topology", call.topology},
                                     {"timeout", call.timeout},
                                     {"prescale", call.prescale},
                                     {"postscale", call.postscale},
                                     {"stream", call.stream},
                                     {"max_channels", call.max_channels}})
    if (given(option)) options[name] = option;
  return options;
}

py::object extents_of(const Shape* shape) { return shape != nullptr ? py::object(tuple_of(*shape)) : py::none(); }

// Not read on ranks that get nothing.
py::object out_of(const CallArguments& call, const Shape* shape) {
  return shape != nullptr ? or_none(call.out) : py::none();
}

py::object normalised_of(const CallArguments& call) {
  return call.normalised ? or_none(call.normalised) : py::bool_(true);
}

// Collective if the graph is this rank's mapping.
py::object matrix_of(const CallArguments& call, int64_t step) {
  const py::object backend = call.communicator.attr("backend");
  return python("pycollective.comm.arguments.graphs", "read")(call.graph, step, backend.attr("group"),
                                                              backend.attr("exchange"), normalised_of(call));
}

}  // namespace

// An array to read; `plain`: null if only Python can read it.
struct TeamCall::Input {
  explicit Input(py::handle x, bool may_be_plain = true) {
    if (may_be_plain && read_plain(x, false, array)) plain = &array;
    else own = python(kArrays, "shape_of")(x).cast<std::vector<int64_t>>();
  }
  Input(const Input&) = delete;
  Shape shape() const { return plain != nullptr ? array.shape : own; }
  PlainArray array;
  const PlainArray* plain = nullptr;

 private:
  std::vector<int64_t> own;
};

// What a call reads and writes.
struct TeamCall::Taken {
  Arrays arrays;
  py::handle x, out;
  py::object result, adapted;  // adapted: what keeps x and out, if Python has made them; else null
};

const TeamCall::Cut& TeamCall::cut(Collective collective, Shape shape) {
  std::pair<Collective, std::vector<int64_t>> key{collective, {shape.begin(), shape.end()}};
  if (const Cut* found = cuts_.find(key)) return *found;
  const py::tuple made = planner_.attr("cut")(name_of(collective), py::tuple(py::cast(key.second)));
  Cut cut{made[0].cast<std::vector<int64_t>>(), made[1].cast<std::vector<int64_t>>(), made[2].cast<std::string>()};
  return cuts_.insert(key, std::move(cut));
}

TeamCall::Terms TeamCall::terms_of(const CallArguments& call, Collective collective, int32_t root) {
  return {{collective,
           root,
           call.op.ptr(),
           call.topology.ptr(),
           {.prescale = factor_of(call.prescale, "prescale"), .postscale = factor_of(call.postscale, "postscale")}},
          call.timeout};
}

// False: Python must adapt an array.
bool TeamCall::take_plain(const CallArguments& call, const PlainArray& x, const Shape* shape, Taken& taken) {
  Arrays& a = taken.arrays;
  a.input = x.view;
  a.has_input = true;
  taken.x = call.x;
  if (shape == nullptr) {
    taken.result = py::none();
    taken.out = taken.result;
    return true;
  }
  PlainArray y;
  if (!given(call.out)) {
    taken.result = new_like(call.x, *shape, y);
    if (!taken.result) return false;
  } else {
    if (call.out.is(call.x) && x.view.writable) y = x;
    else if (!read_plain(call.out, true, y)) return false;
    taken.result = or_none(call.out);
  }
  taken.out = taken.result;
  a.output = y.view;
  a.has_output = true;
  return true;
}

// Not inlined: plain calls pass it by.  False: the arrays are in GPU memory.
[[gnu::noinline, gnu::cold]] bool TeamCall::take_adapted(const CallArguments& call, const Shape* shape,
                                                         Taken& taken) const {
  taken.adapted = python(kArrays, "adapted")(or_none(call.x), out_of(call, shape), extents_of(shape));
  if (taken.adapted.is_none()) return false;
  require_no_stream(call);
  const auto adapted = taken.adapted.cast<py::tuple>();
  taken.x = PyTuple_GET_ITEM(adapted.ptr(), 0);
  taken.out = PyTuple_GET_ITEM(adapted.ptr(), 1);
  taken.result = adapted[2];
  taken.arrays = read(or_none(taken.x), or_none(taken.out));
  return true;
}

// False: the arrays are in GPU memory.
bool TeamCall::take(const CallArguments& call, Collective collective, const PlainArray* x, const Shape* shape,
                    Taken& taken) {
  const bool plain =
      x != nullptr && !given(call.stream) && !given(call.max_channels) && take_plain(call, *x, shape, taken);
  if (!plain && !take_adapted(call, shape, taken)) return false;
  if (shape != nullptr && !given(call.out) &&
      !traits(collective).has_result(team_->rank()))  // nothing is reduced: zeros
    std::memset(taken.arrays.output.data, 0, static_cast<size_t>(taken.arrays.output.bytes()));
  return true;
}

Outcome TeamCall::run_taken(const CallArguments& call, Terms& terms, Taken& taken) {
  return finish(prepare(terms, taken.arrays), taken.x, taken.out, call.nonblocking, std::move(taken.result),
                call.late_timeout);
}

// `weights`: of a weighted collective.
Outcome TeamCall::run_on_device(const CallArguments& call, const PlanKey& key, const Shape* shape, py::object weights) {
  const py::object counts = key.counts.empty() ? py::none() : py::object(tuple_of(key.counts));
  return {python(kDevice, "collective")(call.communicator, call.nonblocking, name_of(key.collective), or_none(call.x),
                                        out_of(call, shape), extents_of(shape), key.root, counts, key.note,
                                        options_of(call), std::move(weights)),
          nullptr};
}

Outcome TeamCall::run_on(const CallArguments& call, Terms& terms, const PlainArray* x, const Shape* shape) {
  Taken taken;
  if (!take(call, terms.key.collective, x, shape, taken)) return run_on_device(call, terms.key, shape, py::none());
  return run_taken(call, terms, taken);
}

Outcome TeamCall::allreduce_in_place(const CallArguments& call, const PlainArray& x) {
  require_open();
  Terms terms = terms_of(call, Collective::allreduce, -1);
  return run_on(call, terms, &x, &x.shape);
}

Outcome TeamCall::collective(Collective collective, const CallArguments& call) {
  const Traits& t = traits(collective);
  require_open();
  const int32_t root = !t.rooted ? -1 : call.root ? rank_number(call.root, "root") : 0;
  const bool omits_x = call.x.is_none() && t.input == Places::root;  // ranks whose x is not read may
  if (omits_x && t.in_blocks() && (team_->rank() == root || !given(call.out)))
    throw WrongType(std::string(t.name) + " needs x at the root, and on other ranks x (of the root's shape) or out");
  const Input x(omits_x && call.out ? call.out : call.x, !omits_x);
  Terms terms = terms_of(call, collective, root);
  Shape shape = x.shape();
  if (t.in_blocks()) {  // without x the blocks are those of allgather: every rank has as many rows as this one
    const Cut& c = cut(omits_x ? Collective::allgather : collective, shape);
    terms.key.counts = c.counts;
    terms.key.note = c.note;
    if (!omits_x) shape = c.shape;
  }
  if (call.match) add_match(terms.key.note, call.match);
  return run_on(call, terms, x.plain, t.has_output(team_->rank(), root) ? &shape : nullptr);
}

Outcome TeamCall::weighted(Collective collective, const CallArguments& call) {
  require_open();
  Terms terms = terms_of(call, collective, -1);
  add_match(terms.key.note, call.match);
  const auto step = call.step ? plain_int(call.step) : 0;
  terms.step = step && *step >= 0 ? *step : python(kNumbers, "step_number")(call.step).cast<int64_t>();
  py::object matrix = call.normalised ? py::none() : planner_.attr("matrix")(call.graph, terms.step);
  for (;;) {
    const Input x(call.x);
    const Shape shape = x.shape();
    Taken taken;
    if (!take(call, collective, x.plain, &shape, taken))
      return run_on_device(call, terms.key, &shape, py::make_tuple(call.graph, terms.step, normalised_of(call)));
    if (!taken.arrays.has_input) throw WrongType("x is missing");
    require_weights(collective, taken.arrays.input.dtype);
    terms.key.topology = matrix.ptr();
    if (!matrix.is_none()) return run_taken(call, terms, taken);
    matrix = matrix_of(call, terms.step);  // meanwhile other threads of Python run, and the arrays are taken again
  }
}

// Collective: the numbers of every rank, in rank order.
std::vector<int64_t> TeamCall::exchange(std::vector<int64_t> numbers, const CallArguments& call) {
  const auto each = static_cast<int64_t>(numbers.size());
  std::vector<int64_t> all(numbers.size() * static_cast<size_t>(team_->size()));
  Arrays a;
  a.input = {reinterpret_cast<char*>(numbers.data()), each, Dtype::int64, true};
  a.output = {reinterpret_cast<char*>(all.data()), each * team_->size(), Dtype::int64, true};
  a.has_input = a.has_output = true;
  const py::object none = py::none();
  Terms terms{{Collective::allgather, -1, call.op.ptr(), none.ptr()}, call.timeout};
  terms.key.counts.assign(static_cast<size_t>(team_->size()), each);
  add_match(terms.key.note, call.match);
  Operation operation = prepare(terms, a);
  run(operation, none, none);
  return all;
}

// A call whose blocks are whole rows of x; this rank gets `rows`.
Outcome TeamCall::run_rows(const CallArguments& call, Collective collective, const Input& x,
                           const std::vector<int64_t>& blocks, int64_t rows) {
  std::vector<int64_t> extents{x.shape().begin(), x.shape().end()};
  if (extents.empty()) extents.push_back(1);
  const int64_t row = checked_count(std::span(extents).subspan(1), 1, "a row's shape");
  Terms terms = terms_of(call, collective, -1);
  for (const int64_t count : blocks) terms.key.counts.push_back(checked_mul(count, row, "counts"));
  terms.key.note = cut(Collective::allgather, x.shape()).note;  // that of its rows
  add_match(terms.key.note, call.match);
  extents[0] = rows;
  const Shape shape = extents;
  return run_on(call, terms, x.plain, &shape);
}

Outcome TeamCall::allgatherv(const CallArguments& call) {
  require_open();
  const std::vector<int64_t> rows = given(call.counts) ? row_counts(call.counts, "counts", team_->size())
                                                       : exchange({rows_of(Input(call.x).shape())}, call);
  const Input x(call.x);  // only now: other threads of Python could run during the exchange
  if (rows[static_cast<size_t>(team_->rank())] != rows_of(x.shape()))
    throw InvalidArgument("counts " + text_of(rows) + " do not fit: rank " + std::to_string(team_->rank()) + " of " +
                          std::to_string(team_->size()) + " has " + std::to_string(rows_of(x.shape())) + " rows");
  return run_rows(call, Collective::allgather, x, rows, sum_of(rows));
}

Outcome TeamCall::alltoallv(const CallArguments& call) {
  require_open();
  const int32_t n = team_->size();
  const std::vector<int64_t> sent = row_counts(call.counts, "send_counts", n);
  const auto require_fit = [&](const Input& x) {
    if (!add_up(sent, rows_of(x.shape())))
      throw InvalidArgument("send_counts " + text_of(sent) + " do not cut an array of shape " +
                            std::string(py::str(tuple_of(x.shape()))) + " for " + std::to_string(n) + " ranks");
  };
  require_fit(Input(call.x));
  const std::vector<int64_t> expected = given(call.recv_counts) ? row_counts(call.recv_counts, "recv_counts", n)
                                                                : std::vector<int64_t>(static_cast<size_t>(n), -1);
  std::vector<int64_t> mine = sent;
  mine.insert(mine.end(), expected.begin(), expected.end());
  const std::vector<int64_t> all = exchange(std::move(mine), call);
  const Input x(call.x);  // see allgatherv
  require_fit(x);
  const auto rows = [&](int32_t from, int32_t to) { return all[static_cast<size_t>(2 * from * n + to)]; };
  const auto wanted = [&](int32_t to, int32_t from) { return all[static_cast<size_t>((2 * to + 1) * n + from)]; };
  for (int32_t to = 0; to < n; ++to)
    for (int32_t from = 0; from < n; ++from)
      if (wanted(to, from) != -1 && wanted(to, from) != rows(from, to))
        throw CommunicatorFault(Fault::mismatch, to,
                                "alltoallv: rank " + std::to_string(from) + " sends " + std::to_string(rows(from, to)) +
                                    " rows to rank " + std::to_string(to) + ", which expects " +
                                    std::to_string(wanted(to, from)));
  std::vector<int64_t> matrix;
  int64_t received = 0;
  for (int32_t from = 0; from < n; ++from) {
    for (int32_t to = 0; to < n; ++to) matrix.push_back(rows(from, to));
    received = checked_add(received, rows(from, team_->rank()), "rows received");
  }
  return run_rows(call, Collective::alltoall, x, matrix, received);
}

Outcome TeamCall::barrier(const CallArguments& call) {
  if (given(call.stream)) {
    py::dict options = options_of(call);
    if (given(call.match)) options["match"] = call.match;
    return {python(kDevice, "barrier")(call.communicator, call.nonblocking, options), nullptr};
  }
  require_no_stream(call);
  require_open();
  static char nothing = 0;
  Taken taken;
  taken.arrays.input = taken.arrays.output = {&nothing, 0, Dtype::uint8, true};
  taken.arrays.has_input = taken.arrays.has_output = true;
  taken.result = py::none();
  taken.x = taken.out = taken.result;
  Terms terms = terms_of(call, Collective::barrier, -1);
  add_match(terms.key.note, call.match);
  return run_taken(call, terms, taken);
}

Outcome TeamCall::message(const CallArguments& call, bool sends) {
  require_open();
  const py::object array = or_none(sends ? call.x : call.out), none = py::none();
  PlainArray plain;
  Arrays a;
  py::object adapted;
  // Of a Buffer the shape is unknown, which a message does not need.
  if (read_plain(array, !sends || py::isinstance<Buffer>(array), plain)) {
    (sends ? a.has_input : a.has_output) = true;
    (sends ? a.input : a.output) = plain.view;
  } else if (python(kArrays, "on_device")(array).cast<bool>()) {
    return {python(kDevice, "message")(call.communicator, call.nonblocking, array, call.root, sends, call.timeout),
            nullptr};
  } else {
    adapted = python(kArrays, sends ? "strided" : "writable")(array);
    a = sends ? read(adapted, none) : read(none, adapted);
  }
  Terms terms{{Collective::send, 0, call.op.ptr(), none.ptr()}, call.timeout};
  return finish(prepare(terms, a), adapted ? adapted : array, none, call.nonblocking, sends ? none : array);
}

}  // namespace pc
