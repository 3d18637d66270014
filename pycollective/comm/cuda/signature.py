"""What of a call on device arrays is the same on all ranks, and the checks of what one rank can know of it."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass, replace
from typing import Any

from pycollective.comm.cuda.arrays import ITEMSIZE, View
from pycollective.comm.factors import Factors
from pycollective.comm.operators import Op
from pycollective.comm.planner import NCCL, ROOTED, default_text
from pycollective.comm.request import REDUCING, CallRequest
from pycollective.comm.segments import setting

IN_BLOCKS = frozenset(("reduce_scatter", "allgather", "gather", "scatter", "alltoall"))
UNSCALED = Factors((1.0, 1.0))


@dataclass(frozen=True, slots=True)
class Signature:
    """What of a call is the same on all ranks, and decides its plan.

    Attributes:
        count: elements of the logical buffer.
        counts: elements of each block; one a rank, for alltoall size*size by sender and then receiver.
        scale: factors on each contribution and on the result.
        note: what else must agree, in words; see Call.
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

    def matches(self, other: Signature) -> bool:
        """Whether two ranks mean the same call: each may have made its own `Op` of the same function."""
        if isinstance(self.op, Op) and isinstance(other.op, Op) and self._operator == other._operator:
            other = replace(other, op=self.op)
        return self == other

    @property
    def _operator(self) -> str:
        return self.op if isinstance(self.op, str) else f"{self.op.name} {self.op.compiled(self.dtype).identity}"

    def text(self, label: str) -> str:
        """In words, for errors; `label`: of the topology."""
        op = f", op {self.op if isinstance(self.op, str) else self.op.name}" if self.collective in REDUCING else ""
        root = f", root {self.root}" if self.collective in ROOTED else ""
        scale = f", scaled by {self.scale[0]:g} and {self.scale[1]:g}" if self.scale != (1.0, 1.0) else ""
        limit = f", max_channels {self.max_channels}" if self.max_channels else ""
        note = f", {self.note}" if self.note else ""
        return f"{self.collective} of {self.count} {self.dtype}{note}{op}{root}{scale}, topology {label}{limit} on GPUs"

    def digest(self, label: str, way: str) -> int:
        """64 bits that differ where ranks' calls do not match; `way`: what besides the signature must agree."""
        said = (self.collective, self.dtype, self.count, self.counts, self.root, self._operator, label, self.scale,
                self.max_channels, self.note, way)  # fmt: skip
        return int.from_bytes(hashlib.blake2b(repr(said).encode(), digest_size=8).digest(), "little")


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
    count = sum(r.counts or ()) if r.collective in IN_BLOCKS else either.count
    scale = UNSCALED if r.scale is None else Factors(r.scale)
    topology = NCCL if uses_nccl(r) else r.topology
    op = r.op if r.collective in REDUCING else "sum"
    return Signature(r.collective, either.dtype, count, r.counts, r.root, op, topology, scale, r.max_channels, r.note)


def uses_nccl(request: CallRequest) -> bool:
    """Whether NCCL carries the call out: it is asked for, or is the default of allreduce."""
    if request.topology is None:
        return request.collective == "allreduce" and default_text() == NCCL
    return bool(request.topology == NCCL)


@functools.cache
def _default_timeout() -> float:
    return setting("PYCOLLECTIVE_TIMEOUT")


def seconds(asked: float | None) -> float:
    """A call's timeout.

    Raises:
        ValueError: negative, or not a number.
    """
    if asked is None:
        return _default_timeout()
    if not float(asked) >= 0:
        raise ValueError(f"timeout must be a number of seconds, 0 or more, not {asked!r}")
    return float(asked)


def check(request: CallRequest, rank: int, size: int) -> None:
    """Everything that one rank can know of a request on device arrays.

    Raises:
        TypeError, ValueError: what cannot work, before anything is sent.
    """
    s, x, out = sign(request), request.x, request.out
    seconds(request.timeout)
    if s.max_channels < 0:
        raise ValueError(f"max_channels is a number of thread blocks, not {s.max_channels}")
    if s.collective == "barrier":
        return
    if s.collective in ROOTED and not 0 <= s.root < size:
        raise ValueError(f"root {s.root} is not a rank of this communicator of {size}")
    at_root = rank == s.root
    if x is None and (s.collective not in ("broadcast", "scatter") or at_root):
        raise TypeError("x is missing")
    if out is None and (s.collective not in ("reduce", "gather") or at_root):
        raise TypeError("out is missing")
    if out is not None and not out.writable:
        raise ValueError("out is read-only")
    if x is not None and out is not None:
        if x.dtype != out.dtype:
            raise TypeError(f"x is {x.dtype} but out is {out.dtype}")
        if x.device != out.device:
            raise ValueError(f"x is on device {x.device} but out is on device {out.device}")
        _check_overlap(s, x, out, rank, size)
    needs_input, needs_output = _lengths(s, rank, size)
    for what, array, needed in (("x", x, needs_input), ("out", out, needs_output)):
        if (
            array is not None
            and array.count != needed
            and not (what == "x" and s.collective == "scatter" and not at_root)
        ):
            raise ValueError(f"{what} has {array.count} elements; this call needs {needed}")


def _lengths(s: Signature, rank: int, size: int) -> tuple[int, int]:
    """Elements of this rank's input and output."""
    if s.counts is None:
        return s.count, s.count
    if s.collective == "alltoall":
        return sum(s.counts[rank * size : (rank + 1) * size]), sum(s.counts[rank::size])
    if s.collective in ("allgather", "gather"):
        return s.counts[rank], s.count
    return s.count, s.counts[rank]


def _check_overlap(s: Signature, x: View, out: View, rank: int, size: int) -> None:
    """x and out may be the same memory only element for element; anything else would read what it has written."""
    if not x.count or not out.count or not x.overlaps(out):
        return
    if s.collective == "alltoall":
        raise ValueError("alltoall cannot work in place: out is x")
    skip = 0 if s.counts is None else sum(s.counts[:rank]) * ITEMSIZE[s.dtype]
    packed_input = s.collective in ("allgather", "gather")
    packed_output = s.collective in ("reduce_scatter", "scatter")
    if x.address + skip * packed_output != out.address + skip * packed_input:
        raise ValueError("x and out overlap without being in place")
