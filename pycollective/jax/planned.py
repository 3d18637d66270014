"""One collective of a traced function: what is fixed about it, and how the compiled function runs it."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from pycollective import _core, checks
from pycollective.comm.arguments.operators import Op
from pycollective.comm.communicator import Communicator
from pycollective.comm.request import CallRequest
from pycollective.dtypes import DTYPES
from pycollective.hvd.graph_call import GraphCall, Start
from pycollective.schedule.collectives import CALLS

Shape = tuple[int, ...]


@dataclass(frozen=True)
class PlannedCollective:
    """What all executions of one call have in common.

    Attributes:
        name: of the collective.
        comm: its ranks.
        op: the operator; "sum" where there is none.
        root: the root; of a message the peer's rank.
        note: a message's tag, on which sender and receiver must agree.
        receives: of a message: this rank receives it.
    """

    name: str
    comm: Communicator
    op: str | Op = "sum"
    root: int = -1
    note: str = ""
    receives: bool = False

    def __repr__(self) -> str:
        details = [f"op={self.op}"] if CALLS[self.name].reduces else []
        details += [f"rank={self.root}"] if self.name == "send" else [f"root={self.root}"] if self.root >= 0 else []
        return f"{'recv' if self.receives else self.name}({', '.join([repr(self.comm.name), *details])})"

    @property
    def is_root(self) -> bool:
        return self.comm.rank == self.root

    @property
    def takes_blocks(self) -> bool:
        """Whether this rank's array has a block for each rank."""
        return self.name in ("alltoall", "reduce_scatter") or (self.name == "scatter" and self.is_root)


def checked(x: Any, name: str) -> None:
    """
    Raises:
        TypeError: an element type that no collective takes, e.g. float0, or a key of jax.random.
    """
    if str(x.dtype) not in DTYPES:
        raise TypeError(f"{name}: no collective takes arrays of element type {x.dtype}")


def counts_of(call: PlannedCollective, shape: Shape) -> tuple[int, ...]:
    """Elements of each block, for an input of this shape; empty if the collective has none."""
    row, size, elements = CALLS[call.name], call.comm.size, math.prod(shape)
    if row.split == "pairs":
        return (elements // size,) * size**2
    if row.split == "free":
        return ()
    return (elements // size if call.takes_blocks else elements,) * size


@functools.lru_cache(maxsize=4096)
def plan(call: PlannedCollective, shape: Shape, dtype: str) -> int:
    """The core's number for it.

    Raises:
        TypeError, ValueError: the call's arguments are invalid.
    """
    backend = call.comm.backend
    counts, count = list(counts_of(call, shape)), math.prod(shape)
    if call.name != "send":
        block = shape[1:] if call.takes_blocks else shape
        part, shown = ("blocks", block) if counts else ("arrays", shape)
        note = f"{part} of shape {shown}" if shown and count else ""
        return _core.jax_plan(backend.team, call.name, dtype, count, call.op, call.root, counts, note, None)
    channel = backend.channel(call.root, not call.receives)
    return _core.jax_plan(channel, "send", dtype, count, "sum", 0, [], call.note, None)


@functools.lru_cache(maxsize=4096)
def plan_both(send: int, receive: int) -> int:
    """The core's number for two messages at the same time."""
    return _core.jax_plan_both(send, receive)


def start_of(call: PlannedCollective) -> Start:
    """Function that executes the call through Python, between hosts, and where XLA does not take the handlers."""

    def start(graph: GraphCall) -> None:
        comm, backend = call.comm, call.comm.backend
        row = CALLS[call.name]
        if call.name == "send":
            has_input, has_output = not call.receives, call.receives
        else:
            has_input, has_output = row.has_input(comm.rank, call.root), row.has_output(comm.rank, call.root)
        given = graph.inputs[0] if graph.inputs else np.empty(0, np.uint8)  # a barrier has none
        shape = given.shape
        x = given if has_input else None
        has_result = has_output and call.name != "barrier"
        out = graph.output(0, result_shape(call, shape)) if has_result else given if has_output else None
        counts = counts_of(call, shape) or None
        backend.run(CallRequest(call.name, _flat(x), _flat(out), op=call.op, root=call.root, counts=counts))
        graph.done(None)

    return start


def _flat(array: Any) -> Any:
    return None if array is None else array.reshape(-1)


def start_of_both(send: PlannedCollective, receive: PlannedCollective) -> Start:
    """Function that executes two messages at the same time."""

    def start(graph: GraphCall) -> None:
        x, like = graph.inputs
        handle = send.comm.isend(x, send.root)
        receive.comm.recv(graph.output(0, like.shape), receive.root)
        handle.wait()
        graph.done(None)

    return start


def result_shape(call: PlannedCollective, shape: Shape) -> Shape:
    """The shape of this rank's result for its array of this shape.

    Raises:
        ValueError: the array has the wrong shape.
    """
    size, name = call.comm.size, call.name
    if call.takes_blocks:
        if not shape or shape[0] != size:
            what = f"{name.capitalize()} input must have shape (nproc, ...)"
            raise ValueError(
                f"{what} with nproc = {size} on {'the root' if name == 'scatter' else 'every rank'}, not {shape}"
            )
        return shape if name == "alltoall" else shape[1:]
    if name == "allgather" or (name == "gather" and call.is_root):
        return (size, *shape)
    return shape


def rank_of(value: Any, name: str, comm: Communicator) -> int:
    """
    Raises:
        TypeError: not an integer known when the function is traced. ValueError: not a rank.
    """
    return checks.integer(value, name, 0, comm.size - 1)
