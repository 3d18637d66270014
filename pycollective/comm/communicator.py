"""The communicator: an ordered set of ranks, and the collectives among them."""

from __future__ import annotations

import inspect
import itertools
import struct
import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pycollective import _core, checks
from pycollective.comm.arguments import arrays
from pycollective.comm.arguments.options import Moving
from pycollective.comm.described import described
from pycollective.comm.explain import Explanation, explain_nccl
from pycollective.comm.handle import Handle
from pycollective.comm.host.team import HostTeam
from pycollective.comm.nonblocking import Nonblocking
from pycollective.comm.objects import ObjectExchange, on_root, root_number
from pycollective.comm.planner import NCCL
from pycollective.names import Elsewhere
from pycollective.schedule.collectives import CALLS, ELSEWHERE

if TYPE_CHECKING:
    from pycollective.typing import T

_INT64 = -(1 << 63), (1 << 63) - 1
_COLOR = struct.Struct("=?qq")  # whether there is a color, the color, the key
_live: weakref.WeakSet[Communicator] = weakref.WeakSet()


@described
class Communicator(Nonblocking):
    """An ordered set of ranks. Made by `init`, `from_mpi`, `local_world`, `split`, `dup`, `group` and `shrink`.

    Every collective must be called by all ranks, in the same order, with matching arguments; else every rank raises
    MismatchError. Arrays are NumPy arrays or any that support DLPack on the CPU (torch tensors),
    of any shape, C-contiguous (an input that is not is copied; an output that is not is refused). Those made by
    `empty` are shared between the ranks and used in place; others are staged through shared scratch. A collective
    returns its result: a new array of x's library, or `out` if given; `out=x` works in place.

    Keyword arguments that the collectives share, each described with each collective: `topology`, `timeout`, `name`
    and, of those that reduce, `op`, `prescale` and `postscale`; for GPU arrays `stream` and `max_channels`.

    Arrays in GPU memory (torch, cupy, numba, DLPack, the CUDA array interface) are reduced on the GPU. Such calls
    return when the work is in the stream; later errors are raised by the next call, by the handle, or by
    `check`.

    Errors that every collective raises: MismatchError, TimeoutError, PeerLostError (these poison the communicator:
    later calls raise at once, `shrink` makes a new one of the survivors); before anything is sent, ValueError and
    TypeError for invalid arguments, TopologyError, ProgramError and VerificationError for a topology.

    Attributes:
        rank, size: position among the ranks, and their number.
        local_rank, local_size: the same among the ranks of this host.
        cross_rank, cross_size: the same among the ranks with this local_rank on all hosts.
        world_ranks: the ranks' numbers in the world.
        name: for error messages.
    """

    __slots__ = ("_incoming", "_outgoing", "_team")  # which calls read without looking for their names

    def __init__(self, backend: HostTeam) -> None:
        group = backend.group
        self.backend, self.gpu = backend, None
        self._team, self._outgoing, self._incoming = backend.team, backend.outgoing, backend.incoming
        self._made = itertools.count()  # communicators made from this one; the same count on all ranks
        self.world_ranks, self.name = group.world_ranks, group.name
        self.rank, self.size = group.rank, group.size
        self.local_rank, self.local_size = group.nodes.local_rank, group.nodes.local_size
        self.cross_rank, self.cross_size = group.nodes.cross_rank, group.nodes.cross_size
        group.relatives.add(self)
        _live.add(self)

    def __repr__(self) -> str:
        return f"<Communicator {self.name!r}: rank {self.rank} of {self.size}>"

    # -- objects -------------------------------------------------------------------------------------------------------

    def broadcast_object(self, value: T, root: int = 0, *, timeout: float | None = None, name: str | None = None) -> T:
        """Every rank gets the root's object.

        Args:
            value: any object that can be pickled, less than 2 GiB; ignored on the other ranks.
            root: the rank that sends.
            timeout: seconds to wait for the peers; default PYCOLLECTIVE_TIMEOUT.
            name: appears in this call's errors.

        Returns:
            on the root `value` itself, on the others a copy.

        Raises:
            TypeError: pickle refuses the object, or any other error of pickling: on every rank.
            ValueError: its pickle is too long, on every rank; or root is not a rank.
        """
        return on_root(lambda: value, root, self, Moving(timeout=timeout, name=name))

    def allgather_object(self, value: T, *, timeout: float | None = None, name: str | None = None) -> list[T]:
        """Every rank gets all ranks' objects.

        Args:
            value: any object that can be pickled, less than 2 GiB.
            timeout, name: as for `broadcast_object`.

        Returns:
            copies of the objects, in rank order.

        Raises:
            TypeError: pickle refuses a rank's object, or any other error of pickling: on every rank.
            ValueError: a pickle is too long, on every rank.
        """
        return ObjectExchange(self, "allgather_object", Moving(timeout=timeout, name=name)).allgather(value)

    def gather_object(
        self, value: T, root: int = 0, *, timeout: float | None = None, name: str | None = None
    ) -> list[T] | None:
        """The root gets all ranks' objects.

        Args:
            value: any object that can be pickled, less than 2 GiB.
            root: the rank that gets them.
            timeout, name: as for `broadcast_object`.

        Returns:
            on the root copies of the objects, in rank order; None on the others.

        Raises:
            TypeError: pickle refuses a rank's object, or any other error of pickling: on every rank.
            ValueError: a pickle is too long, on every rank; or root is not a rank.
        """
        root, options = root_number(root, self.size), Moving(timeout=timeout, name=name)
        return ObjectExchange(self, f"gather_object to {root}", options).gather(value, root)

    def scatter_object(
        self, values: Sequence[T] | None, root: int = 0, *, timeout: float | None = None, name: str | None = None
    ) -> T:
        """Each rank gets one of the root's objects.

        Args:
            values: on the root one object for each rank, each picklable and less than 2 GiB; ignored on the others.
            root: the rank that sends.
            timeout, name: as for `broadcast_object`.

        Returns:
            a copy of the object for this rank.

        Raises:
            TypeError: values is not a sequence, pickle refuses one, or any other error of pickling: on every rank.
            ValueError: not one value for each rank, or a pickle is too long, on every rank; or root is not a rank.
        """
        root, options = root_number(root, self.size), Moving(timeout=timeout, name=name)
        return ObjectExchange(self, f"scatter_object from {root}", options).scatter(values, root)

    # -- windows and other communicators -------------------------------------------------------------------------------

    def empty(
        self,
        shape: int | Sequence[int],
        dtype: Any = np.float64,
        *,
        device: str | int | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Collective: an uninitialised NumPy array in memory that all ranks of a host share: no copies in collectives.

        With `device="cuda"` (or "cuda:1", or a device number), a `DeviceArray` in GPU memory mapped by all ranks:
        `torch.from_dlpack` and `cupy.from_dlpack` convert it without a copy.

        Collectives are zero-copy if every rank passes an array (or a contiguous view of one) from `empty` of this
        communicator; between hosts, messages are then sent from and received in these arrays. The memory is freed with
        the array.

        Args:
            shape: a number of elements, or the extents; the same on all ranks.
            dtype: element type, including "bfloat16", "float8_e4m3fn" and torch's; the same on all ranks.
            device: None for CPU memory; a GPU for its memory.
            timeout: as for split.

        Returns:
            a numpy.ndarray, or a `DeviceArray`.

        Raises:
            MismatchError: shapes or dtypes differ between ranks.
            TimeoutError: names the ranks that have not called.
            CommunicatorError: no memory can be shared.
            TypeError, ValueError: not a shape, or an element type that no collective takes.
        """
        is_number = hasattr(shape, "__index__") and not getattr(shape, "ndim", 0)
        extents = (checks.integer(shape, "shape", 0),) if is_number else tuple(checks.integers(shape, "shape", 0))
        dtype = arrays.numpy_dtype(dtype)
        with self.backend.limited(_seconds(timeout)):
            if device is None:
                return self.backend.empty(extents, dtype)
            from pycollective.comm.cuda.runtime import device_number

            return self.gpu_side(device_number(device)).empty(extents, dtype)

    def check(self) -> None:
        """Raise the error, if any, of calls on GPU arrays that are in progress or have completed.

        Does not wait for them.
        """
        if self.gpu is not None:
            self.gpu.check()

    def split(
        self, color: int | None, key: int = 0, *, name: str | None = None, timeout: float | None = None
    ) -> Communicator | None:
        """Collective: a communicator of the ranks with the same color, ordered by (key, rank).

        Args:
            color: any integer; None joins no new communicator and gets None.
            key: order within the color.
            name: of the new communicator, for error messages.
            timeout: seconds for all of it; by default each of its waits takes as long as a call or a connection may.

        Returns:
            a communicator, or None.

        Raises:
            TypeError, ValueError: color or key is not a 64-bit integer.
            TimeoutError, BootstrapError: names the ranks that have not called, or cannot be reached on their hosts.
            CommunicatorError: no memory can be shared.
        """
        return self._split(color, key, name, "split", timeout)

    def dup(self, *, timeout: float | None = None) -> Communicator:
        """Collective: a communicator of the same ranks, whose calls do not mix with this one's.

        Args:
            timeout: as for split.

        Returns:
            a communicator.

        Raises:
            TimeoutError, BootstrapError, CommunicatorError: as by split.
        """
        self.backend.team.require_turn()
        made = self._split(0, self.rank, f"{self.name}/dup{next(self._made)}", "dup", timeout)
        assert made is not None
        return made

    def group(self, ranks: Sequence[int], *, timeout: float | None = None) -> Communicator | None:
        """Collective over all ranks: a communicator of `ranks`, in that order; None on the others.

        Args:
            ranks: of this communicator, each once; the same list on all ranks.
            timeout: as for split.

        Returns:
            a communicator, or None.

        Raises:
            ValueError: a rank that is out of range or named twice.
            MismatchError: the ranks give different lists.
            TimeoutError, BootstrapError, CommunicatorError: as by split.
        """
        members = checks.integers(ranks, "ranks")
        if len(set(members)) != len(members) or not all(0 <= rank < self.size for rank in members):
            raise ValueError(f"ranks {members} are not different ranks of a communicator of {self.size}")
        place = members.index(self.rank) if self.rank in members else None
        return self._split(None if place is None else 0, place or 0, None, f"group({members})", timeout)

    def _split(
        self, color: int | None, key: int, name: str | None, operation: str, timeout: float | None
    ) -> Communicator | None:
        """`operation`: the calling method, with the arguments that must be the same on all ranks."""
        mine = None if color is None else checks.integer(color, "color", *_INT64)
        key = checks.integer(key, "key", *_INT64)
        if name is not None:
            checks.text(name, "name")
        seconds = _seconds(timeout)
        self.backend.team.require_turn()
        number = next(self._made)
        with self.backend.limited(seconds):
            sent = self.backend.exchange(_COLOR.pack(mine is not None, mine or 0, key), operation)
            gathered = [(rank, *_COLOR.unpack(data)) for rank, data in enumerate(sent)]
            # Of a rank without a color: none.
            members = [rank for _, rank in sorted((its, r) for r, joins, c, its in gathered if joins and c == mine)]
            made = self.backend.split(members, name or f"{self.name}/split{number}:{color}")
        return None if made is None else Communicator(made)

    def shrink(self, timeout: float = 10.0) -> Communicator:
        """A communicator of the surviving ranks, in their old order. For use after PeerLostError or TimeoutError.

        All survivors must call it within `timeout` seconds; ranks that do not are left out. Between hosts only a side
        with more than half of the ranks may shrink, or with half of them and rank 0. Once a rank was left out, only the
        new communicator can be shrunk again.

        Args:
            timeout: seconds.

        Returns:
            a communicator.

        Raises:
            CommunicatorError: this rank was left out; between hosts: its side has too few ranks, or a rank was left
                out before.
        """
        return Communicator(self.backend.shrink(checks.seconds(timeout, "timeout")))

    def free(self) -> None:
        """Free the communicator: this rank makes no further calls on it. May be called twice."""
        if self.gpu is not None:
            self.gpu.close()
        self.backend.close()
        _live.discard(self)

    def explain(self, collective: str, nbytes: int, topology: Any = None) -> Explanation:
        """Which topology, which memory and which path a call would take, and why. Sends nothing.

        Args:
            collective: its name.
            nbytes: bytes of the logical buffer.
            topology: as for the call.

        Returns:
            an Explanation; its str() is human-readable.

        Raises:
            ValueError: no collective of that name, or nbytes is negative.
            TopologyError: no topology of that name.
        """
        checks.choice(collective, "collective", [row.name for row in CALLS.values() if not row.is_message])
        nbytes = checks.integer(nbytes, "nbytes", 0)
        if isinstance(topology, str) and topology == NCCL:
            return explain_nccl(self.backend.group, collective, nbytes)
        found = self.backend.explain(collective, nbytes, topology)
        return found if self.gpu is None else replace(found, gpu=self.gpu.describe())


_public = [name for name in dir(Communicator) if not name.startswith("_")]
for _theirs, _ours in [*((name.capitalize(), name) for name in _public), *ELSEWHERE.items()]:
    setattr(Communicator, _theirs, Elsewhere(_theirs, _ours))


def forget_all() -> None:
    """Forget all communicators in a forked child: they are the parent's, and the child's exit does not end them."""
    _live.clear()


def depart_all() -> None:
    """Finish pending work at exit, and notify the peers that this rank ends normally."""
    for communicator in list(_live):
        communicator.free()


def _seconds(timeout: Any) -> float | None:
    return None if timeout is None else checks.seconds(timeout, "timeout")


def _define(name: str) -> None:
    """Make a method that has its signature and documentation here one of the core, which Python calls without a frame.

    The methods are set on the class itself: inherited ones would search the bases on every call.
    """
    described = getattr(Communicator, name)
    # inspect refuses annotations in a text signature
    parameters = [p.replace(annotation=p.empty) for p in inspect.signature(described).parameters.values()]
    signature = str(inspect.Signature(parameters)).replace("(self", "($self", 1)
    setattr(Communicator, name, _core.method_of(Communicator, described, name, signature, Handle))


for _name in (*CALLS, "recv", "allgatherv", "alltoallv"):
    _define(_name)
    _define(f"i{_name}")
