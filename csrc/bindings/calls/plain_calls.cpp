// The latency paths of TeamCall: calls whose arrays C code reads, without a Python frame.
#include <cstring>
#include <span>

#include "base/checked.h"
#include "bindings/calls/team_call.h"

namespace pc {
namespace {

// The items of a list or a tuple, if they are `size` numbers of rows; nothing if Python must convert or refuse them.
std::optional<std::vector<int64_t>> plain_counts(py::handle counts, int32_t size) {
  if (!counts || (!PyList_CheckExact(counts.ptr()) && !PyTuple_CheckExact(counts.ptr()))) return std::nullopt;
  if (PySequence_Fast_GET_SIZE(counts.ptr()) != size) return std::nullopt;
  std::vector<int64_t> values;
  for (Py_ssize_t i = 0; i < size; ++i) {
    PyObject* item = PySequence_Fast_GET_ITEM(counts.ptr(), i);
    int overflow = 0;
    values.push_back(PyLong_CheckExact(item) ? PyLong_AsLongLongAndOverflow(item, &overflow) : -1);
    if (values.back() < 0) return std::nullopt;  // also if it overflows
  }
  return values;
}

bool given(py::handle counts) { return counts && !counts.is_none(); }

int64_t rows_of(const PlainArray& x) { return x.shape.empty() ? 1 : x.shape[0]; }

// Whether run_plain will take the call's output, whatever its shape: ranks that have exchanged counts must go on.
bool takes_output(const PlainCall& call) {
  PlainArray out;
  return call.out.is_none() ? makes_plain(call.x) : read_plain(call.out, true, out);
}

// After an exchange, while which other threads of Python could run.
void read_again(const PlainCall& call, PlainArray& x, int64_t rows) {
  if (!read_plain(call.x, false, x) || rows_of(x) != rows)
    throw InvalidArgument("x: another thread has given it another shape during the call");
}

bool add_up(const std::vector<int64_t>& numbers, int64_t sum) {
  for (const int64_t number : numbers) {
    if (number > sum) return false;
    sum -= number;
  }
  return sum == 0;
}

}  // namespace

const TeamCall::Cut& TeamCall::cut(Collective collective, std::span<const int64_t> shape) {
  std::pair<Collective, std::vector<int64_t>> key{collective, {shape.begin(), shape.end()}};
  if (const Cut* found = cuts_.find(key)) return *found;
  const py::tuple made = planner_.attr("cut")(name_of(collective), py::tuple(py::cast(key.second)));
  Cut cut{made[0].cast<std::vector<int64_t>>(), made[1].cast<std::vector<int64_t>>(), made[2].cast<std::string>()};
  return cuts_.insert(key, std::move(cut));
}

Outcome TeamCall::run_plain(const PlainCall& call, Terms& terms, const PlainArray& x, std::span<const int64_t> shape) {
  Arrays a;
  a.input = x.view;
  a.has_input = true;
  py::object out = py::none();
  if (traits(terms.key.collective).has_output(team_->rank(), call.root)) {
    PlainArray y;
    const bool is_input = call.out.is(call.x) && x.view.writable;
    if (is_input) y = x;
    if (call.out.is_none()) out = new_like(call.x, shape, y);
    else out = py::reinterpret_borrow<py::object>(is_input || read_plain(call.out, true, y) ? call.out : py::handle());
    if (!out) return {};
    if (call.out.is_none() && !traits(terms.key.collective).has_result(team_->rank()))  // nothing is reduced: zeros
      std::memset(y.view.data, 0, static_cast<size_t>(y.view.bytes()));
    a.output = y.view;
    a.has_output = true;
  }
  return finish(prepare(terms, a), call.x, out, call.nonblocking, out, call.late_timeout);
}

Outcome TeamCall::call_plain(Collective collective, const PlainCall& call) {
  PlainArray x;
  if (!read_plain(call.x, false, x)) return {};
  require_open();
  Terms terms{{collective, call.root, call.op.ptr(), call.topology.ptr(), call.scaling}, call.timeout, call.step};
  if (!traits(collective).in_blocks()) return run_plain(call, terms, x, x.shape);
  const Cut& c = cut(collective, x.shape);
  terms.key.counts = c.counts;
  terms.key.note = c.note;
  return run_plain(call, terms, x, c.shape);
}

// Collective: the numbers of every rank, in rank order.
std::vector<int64_t> TeamCall::exchange(std::vector<int64_t> numbers, const PlainCall& call) {
  const auto each = static_cast<int64_t>(numbers.size());
  std::vector<int64_t> all(numbers.size() * static_cast<size_t>(team_->size()));
  Arrays a;
  a.input = {reinterpret_cast<char*>(numbers.data()), each, Dtype::int64, true};
  a.output = {reinterpret_cast<char*>(all.data()), each * team_->size(), Dtype::int64, true};
  a.has_input = a.has_output = true;
  const py::object none = py::none();
  Terms terms{{Collective::allgather, -1, call.op.ptr(), none.ptr()}, call.timeout};
  terms.key.counts.assign(static_cast<size_t>(team_->size()), each);
  Operation operation = prepare(terms, a);
  run(operation, none, none);
  return all;
}

// A call whose blocks are whole rows of x, `row_counts` of them; this rank gets `rows`.
Outcome TeamCall::run_rows(const PlainCall& call, Collective collective, const PlainArray& x,
                           const std::vector<int64_t>& row_counts, int64_t rows) {
  std::vector<int64_t> shape{x.shape.begin(), x.shape.end()};
  if (shape.empty()) shape.push_back(1);
  const int64_t row = checked_count(std::span(shape).subspan(1), 1, "a row's shape");
  Terms terms{{collective, -1, call.op.ptr(), call.topology.ptr()}, call.timeout};
  for (const int64_t count : row_counts) terms.key.counts.push_back(checked_mul(count, row, "counts"));
  terms.key.note = cut(Collective::allgather, x.shape).note;  // that of its rows
  shape[0] = rows;
  Outcome outcome = run_plain(call, terms, x, shape);
  if (!outcome.result && call.out.is_none()) throw WrongType("x: its library makes no array for the result");
  return outcome;
}

Outcome TeamCall::allgatherv(const PlainCall& call, py::handle counts) {
  PlainArray x;
  if (!read_plain(call.x, false, x)) return {};
  std::optional<std::vector<int64_t>> rows = plain_counts(counts, team_->size());
  if (given(counts) ? !rows : !takes_output(call)) return {};
  require_open();
  if (!rows) {
    const int64_t own = rows_of(x);
    rows = exchange({own}, call);
    read_again(call, x, own);
  }
  if ((*rows)[static_cast<size_t>(team_->rank())] != rows_of(x)) return {};
  return run_rows(call, Collective::allgather, x, *rows, sum_of(*rows));
}

Outcome TeamCall::alltoallv(const PlainCall& call, py::handle send_counts, py::handle recv_counts) {
  PlainArray x;
  if (!read_plain(call.x, false, x) || !takes_output(call)) return {};
  const int32_t n = team_->size();
  const auto sent = plain_counts(send_counts, n);
  const auto expected = given(recv_counts) ? plain_counts(recv_counts, n) : std::vector<int64_t>(size_t(n), -1);
  if (!sent || !expected || !add_up(*sent, rows_of(x))) return {};
  require_open();
  std::vector<int64_t> mine = *sent;
  mine.insert(mine.end(), expected->begin(), expected->end());
  const std::vector<int64_t> all = exchange(std::move(mine), call);
  read_again(call, x, sum_of(*sent));
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

Outcome TeamCall::barrier(const PlainCall& call) {
  require_open();
  static char nothing = 0;
  Arrays a;
  a.input = a.output = {&nothing, 0, Dtype::uint8, true};
  a.has_input = a.has_output = true;
  const py::object none = py::none();
  Terms terms{{Collective::barrier, -1, call.op.ptr(), call.topology.ptr()}, call.timeout};
  return finish(prepare(terms, a), none, none, call.nonblocking, none);
}

Outcome TeamCall::message(const py::object& array, bool sends, const PlainCall& call) {
  PlainArray plain;
  // Of a Buffer the shape is unknown, which a message does not need.
  if (!read_plain(array, !sends || py::isinstance<Buffer>(array), plain)) return {};
  require_open();
  Arrays a;
  (sends ? a.has_input : a.has_output) = true;
  (sends ? a.input : a.output) = plain.view;
  const py::object none = py::none();
  Terms terms{{Collective::send, 0, call.op.ptr(), none.ptr()}, call.timeout};
  return finish(prepare(terms, a), array, none, call.nonblocking, sends ? none : array);
}

}  // namespace pc
