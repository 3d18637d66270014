"""The calls of a communicator's methods on arrays in GPU memory. The core has read their arguments, and calls these."""

from __future__ import annotations

from typing import Any

from pycollective.comm.arguments import graphs
from pycollective.comm.arguments.options import Moving, Options
from pycollective.comm.arguments.rows import Shape
from pycollective.comm.collectives import Collectives
from pycollective.comm.cuda.arrays import fill_with_zeros, stream_of
from pycollective.comm.cuda.runtime import load
from pycollective.comm.cuda.staged import ReceiveBuffer, host_copy
from pycollective.comm.request import CallRequest, read, set_options
from pycollective.dtypes import DTYPES


def collective(
    comm: Collectives,
    nonblocking: bool,
    name: str,
    x: Any,
    out: Any,
    shape: Shape | None,
    root: int,
    counts: tuple[int, ...] | None,
    note: str,
    options: Options,
    weights: tuple[Any, int, Any] | None,
) -> Any:
    """Make a call of a collective, or start it; returns its result, or a Handle.

    Args:
        shape: of the result; None if this rank gets nothing.
        root, counts, note: see CallRequest.
        options: the method's others, but for name and match.
        weights: of a weighted collective: graph, step and normalised.
    """
    made = read(name, x, out, shape, options, root, counts, note)
    group = comm.backend.group
    if weights is not None:
        graph, step, normalised = weights
        if DTYPES[made.x.dtype].kind != "real":
            raise TypeError(f"x: {name} takes floating-point types, not {made.x.dtype}")
        made.step = step
        made.topology = graphs.read(graph, step, group, comm.backend.exchange, normalised)
    elif out is None and shape is not None and not made.row.has_result(group.rank) and made.out.count:
        fill_with_zeros(made.out, made.stream)
    return _make(comm, nonblocking, made)


def barrier(comm: Collectives, nonblocking: bool, options: Moving) -> Any:
    """Make a barrier of the streams that the ranks give."""
    made = CallRequest("barrier", None, None, stream=stream_of(options["stream"], None))
    made.device = load().current_device() if comm.gpu is None else comm.gpu.device
    set_options(made, options)
    return _make(comm, nonblocking, made)


def message(comm: Collectives, nonblocking: bool, array: Any, peer: int, sends: bool, timeout: float | None) -> Any:
    """Send or receive an array, through CPU memory."""
    if sends:
        return _make(comm, nonblocking, CallRequest("send", host_copy(array), None, root=peer, timeout=timeout))
    received = ReceiveBuffer(array)
    made = CallRequest("recv", None, received.copy, array, peer, timeout=timeout, received=received)
    return _make(comm, nonblocking, made)


def _make(comm: Collectives, nonblocking: bool, made: CallRequest) -> Any:
    return comm.start(made) if nonblocking else comm.call(made)
