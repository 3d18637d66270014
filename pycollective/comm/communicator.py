"""The communicator: an ordered set of ranks, and the collectives among them."""

from __future__ import annotations

import inspect
import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pycollective import _core, checks
from pycollective.comm import arrays
from pycollective.comm.blocking import Blocking
from pycollective.comm.described import described
from pycollective.comm.explain import Explanation, explain
from pycollective.comm.nodes import Nodes
from pycollective.comm.nonblocking import Nonblocking
from pycollective.comm.objects import Objects
from pycollective.comm.rail_calls import RailCalls

if TYPE_CHECKING:
    from pycollective.comm.cuda.calls import GpuSide
    from pycollective.comm.cuda.nccl_comm import NcclCalls

_live: weakref.WeakSet[Communicator] = weakref.WeakSet()


@described
class Communicator(Blocking, Nonblocking, Objects):
    """An ordered set of ranks. Made by `init`, `from_mpi`, `local_world`, `split`, `dup`, `group` and `shrink`.

    Every collective must be called by all ranks, in the same order, with matching arguments; MismatchError tells
    every rank where that is not so. Arrays are NumPy arrays or anything that speaks DLPack on the CPU (torch tensors),
    of any shape, C-contiguous (an input that is not is copied; an output that is not is refused). Those made by
    `empty` are shared between the ranks and used in place; others are staged through shared scratch. A collective
    returns its result: a new array of x's library, or `out` where given; `out=x` works in place.

    Keyword arguments that the collectives share, each described with each collective: `topology`, `timeout`, `name`
    and, of those that reduce, `op`, `prescale` and `postscale`; for GPU arrays `stream` and `max_channels`.

    Arrays in GPU memory (torch, cupy, numba, DLPack, the CUDA array interface) are reduced on the GPU. Such calls
    return when the work is in the stream; what goes wrong later is raised by the next call, by the handle, or by
    `check`.

    Errors that every collective raises: MismatchError, TimeoutError, PeerLostError (these poison the communicator:
    later calls raise at once, `shrink` makes a new one of the survivors), and before anything is sent ValueError and
    TypeError for arguments that cannot work, TopologyError, ProgramError and VerificationError for a topology.

    Attributes:
        rank, size: position among the ranks, and their number.
        local_rank, local_size: the same among the ranks of this host.
        cross_rank, cross_size: the same among the ranks with this local_rank on all hosts.
        world_ranks: the ranks' numbers in the world.
        name: for messages.
    """

    def __init__(
        self,
        backend: _core.Team | RailCalls,
        *,
        nodes: Nodes,
        world_ranks: Sequence[int],
        name: str,
        threads: bool = False,
        kin: weakref.WeakSet[Communicator] | None = None,
    ) -> None:
        self._backend = backend
        self._call: Callable[..., Any] = backend.call
        self._nodes = nodes
        self._threads = threads
        self._kin = weakref.WeakSet() if kin is None else kin  # this rank's, of one world of threads
        self._kin.add(self)
        self._numbers = itertools.count()  # of windows and of communicators made from this one, in step on all ranks
        self._channels: dict[tuple[int, int], _core.Team] = {}
        self._gpu: GpuSide | None = None  # made by the first call on a GPU array
        self._nccl: NcclCalls | None = None  # made by the first call with topology="nccl"
        self.world_ranks = tuple(world_ranks)
        self.name = name
        self.rank, self.size = backend.rank, backend.size
        self.local_rank, self.local_size = nodes.local_rank, nodes.local_size
        self.cross_rank, self.cross_size = nodes.cross_rank, nodes.cross_size
        _live.add(self)

    def __repr__(self) -> str:
        return f"<Communicator {self.name!r}: rank {self.rank} of {self.size}>"

    # -- windows and other communicators -------------------------------------------------------------------------------

    def empty(self, shape: int | Sequence[int], dtype: Any = np.float64, *, device: str | int | None = None) -> Any:
        """Collective: an uninitialised NumPy array in memory that all ranks share, for collectives without copies.

        With `device="cuda"` (or "cuda:1", or a device's number) a `DeviceArray` in GPU memory that all ranks have
        mapped: `torch.from_dlpack` and `cupy.from_dlpack` make an array of theirs of it without a copy.

        Collectives are zero-copy where every rank passes an array (or a
        contiguous view of one) made by `empty` of this communicator. The memory lives as long as the array.

        Args:
            shape: a number of elements, or the extents; the same on all ranks.
            dtype: element type, also "bfloat16", "float8_e4m3fn" and torch's; the same on all ranks.
            device: None for CPU memory; a GPU for its memory.

        Returns:
            a numpy.ndarray, or a `DeviceArray`.

        Raises:
            MismatchError: shapes or dtypes differ between ranks.
            CommunicatorError: no memory can be shared.
            TypeError, ValueError: no shape, or an element type that no collective takes.
        """
        is_number = hasattr(shape, "__index__") and not getattr(shape, "ndim", 0)
        extents = (checks.integer(shape, "shape", 0),) if is_number else tuple(checks.integers(shape, "shape", 0))
        if device is not None:
            from pycollective.comm.cuda.calls import empty as empty_on_device

            return empty_on_device(self, extents, arrays.numpy_dtype(dtype), device)
        from pycollective.comm.windows import empty

        return empty(self, extents, arrays.numpy_dtype(dtype))

    def check(self) -> None:
        """Raise what went wrong in calls on GPU arrays that are under way or through, if anything did.

        Does not wait for them.
        """
        if self._gpu is not None:
            self._gpu.check()
        if self._nccl is not None:
            self._nccl.check()

    def split(self, color: int | None, key: int = 0, *, name: str | None = None) -> Communicator | None:
        """Collective: a communicator of the ranks with the same color, ordered by (key, rank).

        Args:
            color: any integer; None takes part in no new communicator and gets None.
            key: order within the color.
            name: of the new communicator, for messages.

        Returns:
            a communicator, or None.

        Raises:
            TypeError, ValueError: color or key is no integer of 64 bits.
            CommunicatorError: no memory can be shared.
        """
        from pycollective.comm.subsets import split

        return split(self, color, key, name)

    def dup(self) -> Communicator:
        """Collective: a communicator of the same ranks, whose calls do not mix with this one's.

        Returns:
            a communicator.

        Raises:
            CommunicatorError: no memory can be shared.
        """
        from pycollective.comm.subsets import split

        self._backend.require_turn()
        made = split(self, 0, self.rank, f"{self.name}/dup{next(self._numbers)}", "dup")
        assert made is not None
        return made

    def group(self, ranks: Sequence[int]) -> Communicator | None:
        """Collective over all ranks: a communicator of `ranks`, in that order; None on the others.

        Args:
            ranks: of this communicator, each once; the same list on all ranks.

        Returns:
            a communicator, or None.

        Raises:
            ValueError: a rank that is out of range or named twice.
            MismatchError: the ranks give different lists.
        """
        from pycollective.comm.subsets import split

        members = checks.integers(ranks, "ranks")
        if len(set(members)) != len(members) or not all(0 <= rank < self.size for rank in members):
            raise ValueError(f"ranks {members} are not different ranks of a communicator of {self.size}")
        place = members.index(self.rank) if self.rank in members else None
        return split(self, None if place is None else 0, place or 0, None, f"group({members})")

    def shrink(self, timeout: float = 10.0) -> Communicator:
        """A communicator of the ranks that still live, in their old order. For use after PeerLostError or TimeoutError.

        Every survivor must call it within `timeout` seconds; who does not is left out. Between hosts it works after a
        PeerLostError alone, where MPI tolerates the loss of ranks (`mpirun --with-ft mpi`), and leaves nobody out.

        Args:
            timeout: seconds.

        Returns:
            a communicator.

        Raises:
            CommunicatorError: this rank was left out; between hosts: MPI knows of no loss, or somebody did not call.
        """
        from pycollective.comm.subsets import shrink

        timeout = checks.number(timeout, "timeout", 0, finite=False)
        return shrink(self, timeout)

    def free(self) -> None:
        """Say goodbye: this rank calls nothing on this communicator any more. May be called twice."""
        _live.discard(self)
        for channel in self._channels.values():
            channel.close()
        if self._nccl is not None:
            self._nccl.close()
        if self._gpu is not None:
            self._gpu.close()
        self._backend.close()

    def explain(self, collective: str, nbytes: int, topology: Any = None) -> Explanation:
        """Which topology, which memory and which path a call would take, and why. Sends nothing.

        Args:
            collective: its name.
            nbytes: bytes of the logical buffer.
            topology: as for the call.

        Returns:
            an Explanation; its str() is for people.

        Raises:
            ValueError: no such collective, or nbytes is negative.
            TopologyError: no such topology.
        """
        return explain(self, collective, nbytes, topology)


def forget_all() -> None:
    """In a forked child: the communicators are the parent's, and a child's end is not the parent's."""
    _live.clear()


def depart_all() -> None:
    """At exit: finish what is in flight, and tell the peers that this rank has ended as it should."""
    for communicator in list(_live):
        if not isinstance(communicator._backend, RailCalls):
            communicator.free()


if not TYPE_CHECKING:
    # The same method, entered without a Python frame: it halves the cost of a small call. It belongs to this class, as
    # one of a base would look through the bases with every call.
    _SIGNATURE = str(  # without annotations, which inspect.signature refuses in a text
        inspect.Signature(
            [p.replace(annotation=p.empty) for p in inspect.signature(Communicator.allreduce).parameters.values()]
        )
    ).replace("(self", "($self", 1)
    Communicator.allreduce = _core.fast_allreduce(Communicator, Communicator.allreduce, _SIGNATURE)
