"""The engine's operations: as ranks submit them, and as the ranks have agreed to run them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from pycollective.comm.arguments import arrays

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pycollective.comm.communicator import Communicator


@dataclass(slots=True)
class DeviceArrays:
    """What an item's arrays in GPU memory are."""

    device: int
    element: str
    nbytes: int  # of x
    place: int = -1  # offset in the ranks' windows of an array that is reduced in place; -1: elsewhere
    entered: Any = None  # the event after which they may be used


@dataclass(slots=True)
class Item:
    """One named operation. All ranks submit the same except for the arrays' content, in any order.

    Attributes:
        collective: allreduce, adasum, broadcast, allgather, alltoall, reducescatter, barrier, or call: any other
            collective function on the engine's communicator.
        name: identifies it on all ranks; only one operation of a name may be in flight.
        x: input, a C-contiguous array (a torch tensor, a NumPy array, anything that the communicator takes); None for a
            barrier. Arrays in GPU memory are read in the order of the stream that is current at submit; the work is
            done once the collective is enqueued, and the stream that is current at `wait` then waits for its result.
        axes: of an x whose axes are permuted, so that its memory is in order: their numbers before that, in x's order,
            which must be the same on all ranks; None: x is not permuted.
        out: the output, may be x; None: a new array of x's library.
        op: as for Communicator.allreduce; of allreduce and reducescatter.
        root: of broadcast.
        splits: of alltoall: rows of x for each rank; None: the same number for all.
        prescale, postscale: factors on each contribution and on the result, of allreduce and reducescatter.
        priority: of several ready operations, those with lower values run first.
        run: of a call: run(engine.comm) is its result.
        complete: of an allgather: fail if a rank has joined, instead of omitting its rows.
        gpu: of arrays in GPU memory, set at submit.
    """

    collective: str
    name: str
    x: Any = None
    out: Any = None
    op: str = "sum"
    root: int = -1
    splits: Sequence[int] | None = None
    prescale: float = 1.0
    postscale: float = 1.0
    priority: int = 0
    run: Callable[[Communicator], Any] | None = None
    complete: bool = False
    axes: Sequence[int] | None = None
    gpu: DeviceArrays | None = field(default=None, init=False, repr=False)


class JobStream(Protocol):
    """The stream in which jobs on arrays in GPU memory run: device.EngineStream, which is loaded with the first."""

    address: int

    def zeros(self, shape: tuple[int, ...], dtype: str) -> Any: ...
    def through_host(self, work: Callable[[NDArray[Any]], NDArray[Any]], x: Any, out: Any) -> Any: ...
    def allreduce(self, jobs: Sequence[EngineJob]) -> list[Any]: ...


@dataclass(slots=True)
class EngineJob:
    """An operation that all ranks have agreed to run next; see Item."""

    item: Item | None  # as submitted by this rank; None if the rank has joined
    collective: str
    dtype: str  # of x; "" if there is no array
    shape: Sequence[int]  # of x; the first extent is -1 if ranks may differ
    rows: Sequence[int]  # the first extent of each rank's x; 0 for ranks that have joined
    absent: Sequence[int]  # ranks that have joined
    place: int  # see DeviceArrays; the same on all ranks
    op: str
    prescale: float
    postscale: float
    gpu: JobStream | None  # where the work on arrays in GPU memory is done

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
