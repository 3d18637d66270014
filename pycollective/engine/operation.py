"""The operations that ranks submit to the engine, and the handles it returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pycollective.comm.communicator import Communicator


@dataclass(slots=True)
class DeviceArrays:
    """What an item's arrays in GPU memory are.

    Attributes:
        device: the GPU's index.
        element: their element type.
        nbytes: size of x in bytes.
        place: offset in the ranks' windows of an array that is reduced in place; -1: elsewhere.
        entered: the event after which they may be used.
    """

    device: int
    element: str
    nbytes: int
    place: int = -1
    entered: Any = None


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


class Work(Protocol):
    """An operation in progress."""

    name: str

    def test(self) -> bool:
        """Return whether it has completed, successfully or not."""
        ...

    def wait(self, timeout: float | None = None) -> Any:
        """Block until it has completed; returns the result (alltoall: (result, rows received from each rank)).

        Raises what the operation raised; TimeoutError if it has not completed after `timeout` seconds.
        """
        ...

    def flush(self) -> None:
        """Run it as soon as all ranks have submitted it, as if this thread waited for it."""
        ...

    def when_done(self, callback: Callable[[], None]) -> None:
        """Call `callback` once it has completed, on the engine's thread, or immediately if it has."""
        ...
