"""An operation that the ranks have agreed to run, for the communicator's collectives."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from pycollective.comm.arguments import arrays
from pycollective.engine.operation import Item

if TYPE_CHECKING:
    from numpy.typing import NDArray


class JobStream(Protocol):
    """The stream in which jobs on arrays in GPU memory run: see device.py."""

    @property
    def address(self) -> int:
        """Its handle."""
        ...

    def zeros(self, shape: tuple[int, ...], dtype: str) -> Any:
        """The contribution of a rank that has joined."""
        ...

    def through_host(self, work: Callable[[NDArray[Any]], NDArray[Any]], x: Any, out: Any) -> Any:
        """Apply `work` to a flat copy of x in host memory; the result is copied to `out` (None: a new array)."""
        ...

    def allreduce(self, jobs: Sequence[EngineJob]) -> list[Any]:
        """Collective: reduce the arrays of a batch as if they were one; returns their results."""
        ...


@dataclass(slots=True)
class EngineJob:
    """An operation that all ranks have agreed to run next.

    Attributes:
        item: as submitted by this rank; None if the rank has joined.
        collective: its name.
        dtype: of x; "" if there is no array.
        shape: of x; the first extent is -1 if ranks may differ.
        rows: the first extent of each rank's x; 0 for ranks that have joined.
        absent: ranks that have joined.
        place: see Item; the same on all ranks.
        op, prescale, postscale: see Item.
        gpu: the stream for arrays in GPU memory, where the work is done.
    """

    item: Item | None
    collective: str
    dtype: str
    shape: Sequence[int]
    rows: Sequence[int]
    absent: Sequence[int]
    place: int
    op: str
    prescale: float
    postscale: float
    gpu: JobStream | None

    @property
    def stream(self) -> int | None:
        """The handle of the stream for the call; None for CPU arrays."""
        return None if self.gpu is None else self.gpu.address

    @property
    def nbytes(self) -> int:
        """Size of x, if its full shape is agreed."""
        return math.prod(self.shape) * arrays.numpy_dtype(self.dtype).itemsize

    def x(self) -> Any:
        """This rank's input; for a rank that has joined nothing, or zeros if the shape is agreed."""
        if self.item is not None:
            return self.item.x
        shape = tuple(0 if extent < 0 else extent for extent in self.shape)
        if self.gpu is not None:
            return self.gpu.zeros(shape, self.dtype)
        return np.zeros(shape, arrays.numpy_dtype(self.dtype))
