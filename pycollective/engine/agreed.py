"""What ranks tell each other about operations where they share no memory, and what follows from it.

The same on all ranks: everybody hears everything in the same order.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from pycollective import _core
from pycollective.comm import arrays
from pycollective.engine.item import Item
from pycollective.engine.jobs import element_type
from pycollective.schedule.collectives import OPERATIONS


class Signature(msgspec.Struct, frozen=True, array_like=True):
    """What ranks must agree on. An extent of -1 may differ."""

    collective: str
    dtype: str
    shape: tuple[int, ...]
    op: str
    root: int
    prescale_digits: str
    """By float.hex: equal where the bits are, also of a NaN."""
    postscale_digits: str
    group: tuple[str, ...]
    device: bool = False

    @property
    def prescale(self) -> float:
        """Factor on each contribution."""
        return float.fromhex(self.prescale_digits)

    @property
    def postscale(self) -> float:
        """Factor on the result."""
        return float.fromhex(self.postscale_digits)

    def __str__(self) -> str:
        text = f"{self.collective}(shape={self.shape}, dtype={self.dtype}".replace("-1", "*")
        text += f", op={self.op}" if self.op else ""
        text += f", prescale={self.prescale:g}" if self.prescale != 1 else ""
        text += f", postscale={self.postscale:g}" if self.postscale != 1 else ""
        text += ", on a GPU" if self.device else ""
        text += f", root={self.root}" if self.root >= 0 else ""
        return text + (f", in a group of {len(self.group)})" if self.group else ")")

    @property
    def fuses_as(self) -> tuple[object, ...] | None:
        """Operations that have the same can be reduced together; None: by itself only."""
        if not OPERATIONS[self.collective].fused:
            return None
        return self.device, self.dtype, self.op, self.prescale_digits, self.postscale_digits

    @property
    def count(self) -> int:
        """Elements of x, where the whole shape is agreed."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of x, where the whole shape is agreed."""
        return self.count * arrays.numpy_dtype(self.dtype).itemsize


class Said(msgspec.Struct, frozen=True, array_like=True):
    """What a rank says about an operation."""

    name: str
    signature: Signature
    rows: int
    priority: int


@dataclass
class Operation:
    """An operation that some ranks have submitted.

    Attributes:
        name: its name.
        since: time.monotonic() when the first rank had.
        said: what each rank has said, in the order in which they did.
        absent: once it is ready: ranks that need not submit it, having joined.
        ready: when the last one had, by clocks.now().
    """

    name: str
    since: float
    said: dict[int, Said] = field(default_factory=dict)
    absent: list[int] = field(default_factory=list)
    ready: int = 0

    @property
    def first(self) -> Said:
        """What the first rank has said."""
        return next(iter(self.said.values()))

    @property
    def signature(self) -> Signature:
        """Of all ranks, if they do not differ."""
        return self.first.signature

    def rows(self, size: int) -> list[int]:
        """The first extent of each rank's x; 0 for ranks that have joined."""
        return [0 if rank in self.absent else self.said[rank].rows for rank in range(size)]

    def difference(self) -> str:
        """What the ranks do not agree on, for people; empty if they do."""
        ranks = sorted(self.said)
        mine = self.said[ranks[0]].signature
        other = next((rank for rank in ranks if self.said[rank].signature != mine), None)
        if other is None:
            return ""
        return (
            f"operation {self.name!r} differs between ranks: rank {ranks[0]} submits {mine}; "
            f"rank {other} submits {self.said[other].signature}"
        )


def batches(ready: Sequence[Operation], threshold: int) -> Iterator[list[Operation]]:
    """Cut what is ready into what runs together: the most needed first, and with it what can be fused, up to
    `threshold` bytes. A group is not torn apart. What ranks differ about is alone; a join comes last."""
    left = sorted(ready, key=lambda one: (one.signature.collective == "join", one.first.priority))
    while left:
        head = left[0]
        batch, rest = [head], left[1:]
        fuses, group = head.signature.fuses_as, head.signature.group
        if fuses is not None and not head.difference():
            nbytes, full, rest = head.signature.nbytes, False, []
            for one in left[1:]:
                s = one.signature
                fusable = s.fuses_as == fuses and not one.difference()
                if fusable and (group == s.group != () or (not full and nbytes + s.nbytes <= threshold)):
                    nbytes, group = nbytes + s.nbytes, s.group
                    batch.append(one)
                else:
                    full = full or fusable
                    rest.append(one)
        yield batch
        left = rest


def read(item: Item, group: tuple[str, ...], size: int) -> Said:
    """What this rank has to say about an item.

    Raises:
        TypeError, ValueError: arguments that cannot work, found before anything is said.
    """
    if not isinstance(item.name, str):
        raise TypeError(f"an operation's name is a str, not {type(item.name).__name__}")
    row = OPERATIONS[item.collective]
    reduces = row.reduces
    shape = arrays.shape_of(item.x) if item.x is not None else ()
    rows = shape[0] if shape else 1
    if shape and row.rows_differ:
        shape = (-1, *shape[1:])
    dtype = "" if item.x is None else item.element or element_type(item.x)
    if reduces:
        _check_operator(item.op, dtype, (item.prescale, item.postscale) != (1.0, 1.0))
    if row.rooted and not 0 <= item.root < size:
        raise ValueError(f"root {item.root} is not a rank of this communicator of {size}")
    if row.fused and item.device is None:
        _check_out(item, dtype, math.prod(shape))
    signature = Signature(
        item.collective,
        dtype,
        shape,
        item.op if reduces else "",
        int(item.root) if row.rooted else -1,
        float(item.prescale if reduces else 1.0).hex(),
        float(item.postscale if reduces else 1.0).hex(),
        group,
        item.device is not None,
    )
    return Said(item.name, signature, rows, int(item.priority))


@functools.cache
def _check_operator(op: str, dtype: str, scaled: bool) -> None:
    if not _core.takes(op, dtype):
        raise TypeError(f"operator {op} does not take {dtype}")
    if scaled:
        one = np.ones(1, arrays.numpy_dtype(dtype))
        _core.combine(op, [one, one], [one.copy()], prescale=2.0, postscale=1.0)  # it knows whether it can


def _check_out(item: Item, dtype: str, count: int) -> None:
    if element_type(item.out) != dtype:
        raise TypeError("x and out differ in their element types")
    if math.prod(arrays.shape_of(item.out)) != count:
        raise ValueError("x and out differ in size")
    if isinstance(item.out, np.ndarray) and not item.out.flags.writeable:
        raise ValueError("out is read-only")
