"""One rank's call of a collective with its terms: what backends execute.

The methods of a communicator make one for arrays in GPU memory (device_calls.py) only.

Ranks must agree on the shape of a row wherever rows are cut or joined (see rows.py): it is part of the request's note.
Calls that work element by element (allreduce, reduce, broadcast) compare the number of elements only, as MPI does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pycollective import checks
from pycollective.comm.arguments import arrays
from pycollective.comm.arguments.numbers import factor, with_match
from pycollective.comm.arguments.operators import Op
from pycollective.comm.arguments.options import Moving, Options
from pycollective.comm.arguments.rows import Shape, note_of, rows_of
from pycollective.schedule.collectives import CALLS, Collective

if TYPE_CHECKING:
    from pycollective.comm.group import Group


@dataclass(slots=True)
class CallRequest:
    """One rank's call of a collective. Fields without a comment: see Options."""

    collective: str
    x: Any  # CPU: an ndarray or `_core.HostBuffer`; GPU: a `View`; None if this rank has none
    out: Any  # likewise
    result: Any = None  # the call's return value
    root: int = -1  # -1: none
    counts: tuple[int, ...] | None = None  # elements of each block: one per rank, or by sender and then receiver
    note: str = ""  # text for an error, on which the ranks must also agree
    op: str | Op = "sum"
    scale: tuple[float, float] | None = None  # factors on each contribution and on the result; None: neither
    topology: Any = None
    timeout: float | None = None
    name: str | None = None
    device: int | None = None  # of arrays in GPU memory: the number of the GPU
    stream: int = 0  # of arrays in GPU memory: the handle of the call's stream
    max_channels: int = 0
    signature: Any = None  # the key of the call's plan on a GPU, once known (see cuda/signature.py)
    step: int = 0  # of a weighted collective: on which the ranks must also agree
    received: Any = None  # for a message to an array in GPU memory: the host buffer that copies it there
    copies: int = 0  # of arrays in GPU memory whose call the CPU executes: the address of `_cuda.StagingCopies`

    @property
    def row(self) -> Collective:
        """The collective's properties."""
        return CALLS[self.collective]


def exchanged(
    collective: str, x: Any, out: Any, group: Group, options: Moving, matrix: Sequence[Sequence[int]]
) -> CallRequest:
    """Blocks of different lengths from every rank to every other. `matrix[s][d]`: rows from s to d."""
    _, cell, length = rows_of(arrays.shape_of(x))
    counts = tuple(int(part) * length for sender in matrix for part in sender)
    mine = sum(int(sender[group.rank]) for sender in matrix)
    return read(collective, x, out, (mine, *cell), options, -1, counts, note_of(cell))


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
    request = CallRequest(collective, x, out, None, root, counts, note)
    set_options(request, options)
    adapted = arrays.adapted(x, out, shape)
    if adapted is None:
        _read_on_device(request, shape, options.get("stream"))
    else:
        request.x, request.out, request.result = adapted
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


def set_options(request: CallRequest, options: Options | Moving) -> None:
    """Set a request's op, topology, timeout, factors, match and channels from a method's options."""
    get = options.get
    request.op, request.topology, request.timeout = get("op", "sum"), get("topology"), get("timeout")  # type: ignore[assignment]
    before, after = get("prescale"), get("postscale")
    if before is not None or after is not None:
        request.scale = (factor(before, "prescale"), factor(after, "postscale"))
    request.note = with_match(request.note, get("match"))
    limit = get("max_channels")
    if limit is not None:
        request.max_channels = checks.integer(limit, "max_channels")
