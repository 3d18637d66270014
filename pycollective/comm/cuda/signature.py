"""The part of a call on device arrays that is the same on all ranks, and the checks that one rank can do."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, replace
from typing import Any

from pycollective import _core
from pycollective.comm.arguments.operators import Op
from pycollective.comm.cuda.arrays import ITEMSIZE, View
from pycollective.comm.planner import NCCL, default_text
from pycollective.comm.request import CallRequest
from pycollective.schedule.collectives import CALLS, PRIMARY, Collective


class Factors(tuple[float, float]):
    """The factors on each contribution and on the result: part of a plan's key, on which ranks must agree.

    Compared by their bits: NaN equals itself and 0.0 differs from -0.0, as in the core.
    """

    __slots__ = ()

    def _bits(self) -> bytes:
        return struct.pack("2d", *self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, tuple) and len(other) == 2 and self._bits() == struct.pack("2d", *other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self._bits())


UNSCALED = Factors((1.0, 1.0))


@dataclass(frozen=True, slots=True)
class Signature:
    """The part of a call that is the same on all ranks and determines its plan.

    Attributes:
        count: elements of the logical buffer.
        counts: elements of each block; one per rank, for alltoall size*size by sender and then receiver.
        scale: factors on each contribution and on the result.
        note: text of what else must agree; see CallRequest.
    """

    collective: str
    dtype: str
    count: int
    counts: tuple[int, ...] | None
    root: int
    op: str | Op
    topology: Any
    scale: Factors
    max_channels: int
    note: str = ""

    @property
    def nbytes(self) -> int:
        return self.count * ITEMSIZE[self.dtype]

    @property
    def row(self) -> Collective:
        return CALLS[self.collective]

    def matches(self, other: Signature) -> bool:
        """Return whether two ranks make the same call: each may have created its own `Op` from the same function."""
        if isinstance(self.op, Op) and isinstance(other.op, Op) and self._operator == other._operator:
            other = replace(other, op=self.op)
        return self == other

    @property
    def _operator(self) -> str:
        return self.op if isinstance(self.op, str) else f"{self.op.name} {self.op.compiled(self.dtype).identity}"

    def text(self, label: str) -> str:
        """Description for errors; `label`: of the topology."""
        op = f", op {self.op if isinstance(self.op, str) else self.op.name}" if self.row.reduces else ""
        root = f", root {self.root}" if self.row.rooted else ""
        scale = f", scaled by {self.scale[0]:g} and {self.scale[1]:g}" if self.scale != (1.0, 1.0) else ""
        limit = f", max_channels {self.max_channels}" if self.max_channels else ""
        note = f", {self.note}" if self.note else ""
        return f"{self.collective} of {self.count} {self.dtype}{note}{op}{root}{scale}, topology {label}{limit} on GPUs"

    def digest(self, label: str, way: str) -> int:
        """64-bit digest that differs if ranks' calls do not match; `way`: what else must agree."""
        parts = (self.collective, self.dtype, self.count, self.counts, self.root, self._operator, label, self.scale,
                 self.max_channels, self.note, way)  # fmt: skip
        return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "little")


def sign(request: CallRequest) -> Signature:
    """The signature of a request on device arrays, which keeps it."""
    if request.signature is None:
        request.signature = _sign(request)
    made: Signature = request.signature
    return made


def _sign(r: CallRequest) -> Signature:
    if r.collective == "barrier":
        return Signature("barrier", "uint8", 0, None, -1, "sum", r.topology, UNSCALED, r.max_channels)
    either = r.x or r.out
    count = sum(r.counts or ()) if r.row.in_blocks else either.count
    scale = UNSCALED if r.scale is None else Factors(r.scale)
    topology = NCCL if uses_nccl(r) else r.topology
    op = r.op if r.row.reduces else "sum"
    return Signature(r.collective, either.dtype, count, r.counts, r.root, op, topology, scale, r.max_channels, r.note)


def uses_nccl(request: CallRequest) -> bool:
    """Return whether NCCL executes the call: if requested, or as the default of the primary collective."""
    if request.topology is None:
        return request.collective == PRIMARY and default_text() == NCCL
    return bool(request.topology == NCCL)


def check(request: CallRequest, rank: int, size: int) -> None:
    """All checks that one rank can do of a request on device arrays.

    Raises:
        TypeError, ValueError: invalid arguments, before anything is sent.
    """
    s, x, out = sign(request), request.x, request.out
    _core.timeout_of(request.timeout)
    if s.max_channels < 0:
        raise ValueError(f"max_channels must be a number of thread blocks, not {s.max_channels}")
    if s.collective == "barrier":
        return
    if x is not None and out is not None and x.device != out.device:
        raise ValueError(f"x is on device {x.device} but out is on device {out.device}")
    _core.check_call(s.collective, rank, size, s.root, s.counts, for_core(x), for_core(out))


def for_core(array: View | None) -> tuple[int, int, str, bool] | None:
    """A device array in the form of the core's checks."""
    return None if array is None else (array.address, array.count, array.dtype, array.writable)
