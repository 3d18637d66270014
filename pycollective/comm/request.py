"""One rank's call of a collective, parsed and checked: its arrays, parameters and options.

Ranks must agree on the shape of a row wherever rows are cut or joined (see rows.py): it is part of the request's note.
Calls that work element by element (allreduce, reduce, broadcast) compare the number of elements only, as MPI does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import index
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from pycollective import _core, checks
from pycollective.comm.arguments import arrays
from pycollective.comm.arguments.operators import Op
from pycollective.comm.arguments.options import ALLOWED, Calling, Moving, Options
from pycollective.comm.arguments.rows import Shape, cut, note_of, rows_of
from pycollective.dtypes import DTYPES
from pycollective.schedule.collectives import CALLS, Collective

if TYPE_CHECKING:
    from pycollective.comm.group import Group

_ONLY_REDUCING = frozenset(("op", "prescale", "postscale"))
_MOST = (1 << 31) - 1  # largest rank number in the core
_INT64 = -(1 << 63), (1 << 63) - 1

_NOTHING = np.empty(0, np.uint8)


@dataclass(slots=True)
class CallRequest:
    """One rank's call of a collective.

    Attributes:
        collective: its name.
        x, out: arrays in the backends' form (CPU: an ndarray or `_core.HostBuffer`; GPU: a `View`), or None if
            this rank has none.
        result: the call's return value.
        root: -1 if there is none.
        counts: elements of each block: one per rank, or for alltoall size*size, by sender and then receiver.
        note: text for an error, on which the ranks must also agree.
        op, topology, timeout, name, max_channels: see Options.
        scale: factors on each contribution and on the result; None for neither.
        device, stream: of arrays in GPU memory: the number of the GPU, and the handle of the call's stream;
            None and 0 for the CPU.
        signature: the key of the call's plan on a GPU, once known (see cuda/signature.py).
        step: of a weighted collective: on which the ranks must also agree.
        received: for a message to an array in GPU memory: the host buffer that copies it there.
        copies: of arrays in GPU memory whose call the CPU executes: the address of `_cuda.StagingCopies`; else 0.
    """

    collective: str
    x: Any
    out: Any
    result: Any = None
    root: int = -1
    counts: tuple[int, ...] | None = None
    note: str = ""
    op: str | Op = "sum"
    scale: tuple[float, float] | None = None
    topology: Any = None
    timeout: float | None = None
    name: str | None = None
    device: int | None = None
    stream: int = 0
    max_channels: int = 0
    signature: Any = None
    step: int = 0
    received: Any = None
    copies: int = 0

    @property
    def row(self) -> Collective:
        """The collective's properties."""
        return CALLS[self.collective]


def elementwise(collective: str, x: Any, out: Any, group: Group, options: Options) -> CallRequest:
    """A reduction whose result has the shape of x on every rank; zeros if there is nothing to reduce."""
    request = read(collective, x, out, arrays.shape_of(x), options)
    if out is None and not request.row.has_result(group.rank):
        _fill_with_zeros(request)
    return request


def weighted(
    collective: str,
    x: Any,
    graph: Any,
    step: int,
    out: Any,
    group: Group,
    exchange: Callable[[bytes, str], Sequence[bytes]],
    normalised: bool,
    options: Calling,
) -> CallRequest:
    """A weighted sum of some ranks' x. If `graph` is this rank's mapping, the ranks exchange theirs."""
    if "topology" in options:
        raise TypeError(f"unknown keyword arguments: topology; {collective} takes a graph")
    request = read(collective, x, out, arrays.shape_of(x), cast("Moving", options))
    name = request.x.dtype if isinstance(request.x.dtype, str) else _core.dtype_name(request.x.dtype)
    if name is None or DTYPES[name].kind != "real":
        raise TypeError(f"{collective} takes floating-point types, not {name or request.x.dtype}")
    request.step = checks.integer(step, "step", 0, _MOST)
    from pycollective.comm.arguments import graphs  # loads the compiler, which init() does not need

    request.topology = graphs.read(graph, request.step, group, exchange, checks.flag(normalised, "normalised"))
    return request


def barrier(options: Moving, device: int | None = None) -> CallRequest:
    """`device`: of the communicator's GPU arrays, if known."""
    if not options:
        return CallRequest("barrier", _NOTHING, _NOTHING)
    if options.get("stream") is None:
        return read("barrier", _NOTHING, _NOTHING, None, options)
    _check_options(CALLS["barrier"], options)
    from pycollective.comm.cuda.arrays import stream_of
    from pycollective.comm.cuda.runtime import load

    request = CallRequest("barrier", None, None, stream=stream_of(options["stream"], None))
    request.device = load().current_device() if device is None else device
    _set_options(request, options)
    return request


def rooted(collective: str, x: Any, root: int, out: Any, group: Group, options: Options | Moving) -> CallRequest:
    """A collective with a root, of arrays of one shape. Ranks whose x is not read may omit it if they give out."""
    row, root = CALLS[collective], rank_number(root, "root")
    shape = arrays.shape_of(out if x is None and row.input == "root" else x)
    if not row.has_output(group.rank, root):
        return read(collective, x, None, None, options, root)
    return read(collective, x, out, shape, options, root)


def blocks(collective: str, x: Any, root: int, out: Any, group: Group, options: Options | Moving) -> CallRequest:
    """A collective that cuts or joins arrays of the same shape on every rank.

    On the other ranks of a scatter, `x` is only a template; without it, `out` is, with the row count of every rank.
    """
    row = CALLS[collective]
    root = rank_number(root, "root") if row.rooted else -1
    if x is None and row.input == "root":
        if group.rank == root or out is None:
            raise TypeError(f"{collective} needs x at the root, and on other ranks x (of the root's shape) or out")
        shape = arrays.shape_of(out)
        counts = (math.prod(shape),) * group.size
        return read(collective, None, out, shape, options, root, counts, note_of(shape[1:]))
    made = cut(collective, arrays.shape_of(x), group.rank, group.size)
    if not row.has_output(group.rank, root):
        return read(collective, x, None, None, options, root, made.counts, made.note)
    return read(collective, x, out, made.shape, options, root, made.counts, made.note)


def joined(collective: str, x: Any, counts: Sequence[int], out: Any, group: Group, options: Moving) -> CallRequest:
    """Blocks of different lengths, joined on every rank. `counts`: rows of each rank; this rank's must match x."""
    rows, cell, length = rows_of(arrays.shape_of(x))
    of_ranks = numbers(counts, "counts", group.size)
    if of_ranks[group.rank] != rows:
        raise ValueError(f"counts {of_ranks} do not fit: rank {group.rank} of {group.size} has {rows} rows")
    elements = tuple(each * length for each in of_ranks)
    return read(collective, x, out, (sum(of_ranks), *cell), options, -1, elements, note_of(cell))


def exchanged(
    collective: str, x: Any, out: Any, group: Group, options: Moving, matrix: Sequence[Sequence[int]]
) -> CallRequest:
    """Blocks of different lengths from every rank to every other. `matrix[s][d]`: rows from s to d."""
    _, cell, length = rows_of(arrays.shape_of(x))
    counts = tuple(int(part) * length for sender in matrix for part in sender)
    mine = sum(int(sender[group.rank]) for sender in matrix)
    return read(collective, x, out, (mine, *cell), options, -1, counts, note_of(cell))


def send(x: Any, dest: int, group: Group, timeout: float | None) -> CallRequest:
    """A message to rank `dest`, the request's root."""
    if arrays.on_device(x):
        from pycollective.comm.cuda.staged.messages import host_copy

        x = host_copy(x)
    elif type(x) is not np.ndarray or not x.flags.c_contiguous:
        x = arrays.readable(x)
    return CallRequest("send", x, None, root=_peer(dest, "dest", group), timeout=timeout)


def recv(out: Any, source: int, group: Group, timeout: float | None) -> CallRequest:
    """A message from rank `source`, the request's root."""
    peer = _peer(source, "source", group)
    if not arrays.on_device(out):
        return CallRequest("recv", None, arrays.writable(out), out, peer, timeout=timeout)
    from pycollective.comm.cuda.staged.messages import ReceiveBuffer

    received = ReceiveBuffer(out)
    return CallRequest("recv", None, received.copy, out, peer, timeout=timeout, received=received)


def rank_number(rank: Any, name: str) -> int:
    """The number of a rank; its range is checked by the call."""
    return rank if type(rank) is int and -_MOST <= rank <= _MOST else checks.integer(rank, name, -_MOST, _MOST)


def _peer(rank: Any, name: str, group: Group) -> int:
    """The number of another rank."""
    number = rank_number(rank, name)
    if number == group.rank:
        raise ValueError(f"{name} {number} is this rank itself, not another rank: copy the array instead")
    if not 0 <= number < group.size:
        raise ValueError(f"{name} {number} is not another rank of this communicator of {group.size}")
    return number


def numbers(counts: Any, name: str, size: int) -> list[int]:
    """One number for each rank, none below 0."""
    try:
        found = [index(count) for count in counts]
        if len(found) == size and min(found) >= 0:
            return found
    except Exception:  # reported below
        pass
    return checks.integers(counts, name, 0, count=size)


def read(
    collective: str,
    x: Any,
    out: Any,
    shape: Shape | None,
    options: Options | Moving,
    root: int = -1,
    counts: tuple[int, ...] | None = None,
    note: str = "",
) -> CallRequest:
    """Read the arrays and options of a call, and allocate the output if none is given.

    Args:
        shape: of the result, to allocate `out`; None if this rank gets nothing.

    Raises:
        TypeError, ValueError: invalid arguments, before anything is sent.
    """
    if options:
        _check_options(CALLS[collective], options)
    request = CallRequest(collective, x, out, None, root, counts, note)
    if arrays.on_device(x) or arrays.on_device(out):
        _set_options(request, options)
        _read_on_device(request, shape, options.get("stream"))
        return request
    if options:
        _set_options(request, options)
        for name in ("stream", "max_channels"):
            if options.get(name) is not None:
                raise ValueError(f"{name} is for GPU arrays; these are in CPU memory")
    if out is None and shape is not None:
        if x is None:
            raise TypeError("x is missing")
        out = arrays.new_like(x, shape)
    if x is not None:
        request.x = arrays.strided(x)  # packed when the call starts
    if out is not None:
        request.out = arrays.writable(out)
    if shape is not None:
        request.result = out
    return request


def _read_on_device(request: CallRequest, shape: Shape | None, stream: Any) -> None:
    from pycollective.comm.cuda import arrays as device_arrays
    from pycollective.comm.cuda.runtime import load

    load()  # raises if there is no GPU path
    x, out = request.x, request.out
    for what, array in (("x", x), ("out", out)):
        if array is not None and not arrays.on_device(array):
            raise TypeError(f"{what} is in CPU memory, and the other array on a GPU: move one of them")
    request.stream = device_arrays.stream_of(stream, out if x is None else x)
    if out is None and shape is not None:
        out = device_arrays.new_like(x, shape, request.stream)
    if x is not None:
        request.x = device_arrays.view(x, request.stream, "x")
    if out is not None:
        request.out = device_arrays.view(out, request.stream, "out")
    if shape is not None:
        request.result = out
    request.device = (request.out if x is None else request.x).device


def _fill_with_zeros(request: CallRequest) -> None:
    if request.device is None:
        arrays.clear(request.result)
    elif request.out.count:
        from pycollective.comm.cuda.arrays import fill_with_zeros

        fill_with_zeros(request.out, request.stream)


def _check_options(row: Collective, options: Options | Moving) -> None:
    if not options.keys() <= ALLOWED:
        raise TypeError(f"unknown keyword arguments: {', '.join(sorted(options.keys() - ALLOWED))}")
    if not row.reduces and options.keys() & _ONLY_REDUCING:
        raise TypeError("op, prescale and postscale are for collectives that reduce")
    op = options.get("op")
    if isinstance(op, str) and op == "avg" and not row.averages:
        raise ValueError(f"{row.name} does not take operator avg: the ranks' results have different numbers of inputs")


def _set_options(request: CallRequest, options: Options | Moving) -> None:
    get = options.get
    request.op, request.topology, request.timeout = get("op", "sum"), get("topology"), get("timeout")  # type: ignore[assignment]
    before, after = get("prescale"), get("postscale")
    if before is not None or after is not None:
        request.scale = (_factor(before, "prescale"), _factor(after, "postscale"))
    name = get("name")
    if name is not None:
        request.name = checks.text(name, "name")
    match = get("match")
    if match is not None:
        what = f"match={match if type(match) is str else checks.integer(match, 'match', *_INT64)!r}"
        request.note = f"{request.note}, {what}" if request.note else what
    limit = get("max_channels")
    if limit is not None:
        request.max_channels = checks.integer(limit, "max_channels")


def _factor(given: Any, name: str) -> float:
    """An omitted factor is 1; infinite ones and NaN follow IEEE arithmetic."""
    if given is None:
        return 1.0
    return given if type(given) is float else checks.number(given, name, finite=False, nan=True)
