"""The communicator: an ordered set of ranks, and the collectives among them."""

from __future__ import annotations

import inspect
import itertools
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pycollective import _core, checks
from pycollective.comm.arguments import arrays
from pycollective.comm.arguments.options import Moving
from pycollective.comm.backend import HostBackend
from pycollective.comm.control import Codec
from pycollective.comm.described import described
from pycollective.comm.explain import Explanation, explain
from pycollective.comm.nonblocking import Nonblocking
from pycollective.comm.objects import ObjectExchange, on_root, root_number
from pycollective.schedule.collectives import COLLECTIVES

if TYPE_CHECKING:
    from pycollective.typing import T

_INT64 = -(1 << 63), (1 << 63) - 1
_COLORS: Codec[tuple[int | None, int]] = Codec(tuple[int | None, int])
_live: weakref.WeakSet[Communicator] = weakref.WeakSet()


@described
class Communicator(Nonblocking):
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

    def __init__(self, backend: HostBackend) -> None:
        group = backend.group
        self.backend, self.gpu = backend, None
        # What calls of plain arrays enter without a Python frame.
        self._team, self._outgoing, self._incoming = backend.team, backend.outgoing, backend.incoming
        self._made = itertools.count()  # communicators made from this one, in step on all ranks
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
            value: any object that pickle takes, of less than 2 GiB; not looked at on the other ranks.
            root: the rank whose object counts.
            timeout: seconds to wait for the peers; default PYCOLLECTIVE_TIMEOUT.
            name: named in this call's errors.

        Returns:
            on the root `value` itself, on the others a copy.

        Raises:
            TypeError: pickle refuses the object, or something else that pickling raised: on every rank.
            ValueError: its pickle is too long, on every rank; or root is no rank.
        """
        return on_root(lambda: value, root, self, Moving(timeout=timeout, name=name))

    def allgather_object(self, value: T, *, timeout: float | None = None, name: str | None = None) -> list[T]:
        """Every rank gets all ranks' objects.

        Args:
            value: any object that pickle takes, of less than 2 GiB.
            timeout, name: as for `broadcast_object`.

        Returns:
            copies of the objects, in rank order.

        Raises:
            TypeError: pickle refuses a rank's object, or something else that pickling raised: on every rank.
            ValueError: a pickle is too long, on every rank.
        """
        return ObjectExchange(self, "allgather_object", Moving(timeout=timeout, name=name)).allgather(value)

    def gather_object(
        self, value: T, root: int = 0, *, timeout: float | None = None, name: str | None = None
    ) -> list[T] | None:
        """The root gets all ranks' objects.

        Args:
            value: any object that pickle takes, of less than 2 GiB.
            root: the rank that gets them.
            timeout, name: as for `broadcast_object`.

        Returns:
            on the root copies of the objects, in rank order; None on the others.

        Raises:
            TypeError: pickle refuses a rank's object, or something else that pickling raised: on every rank.
            ValueError: a pickle is too long, on every rank; or root is no rank.
        """
        root, options = root_number(root, self.size), Moving(timeout=timeout, name=name)
        return ObjectExchange(self, f"gather_object to {root}", options).gather(value, root)

    def scatter_object(
        self, values: Sequence[T] | None, root: int = 0, *, timeout: float | None = None, name: str | None = None
    ) -> T:
        """Each rank gets one of the root's objects.

        Args:
            values: on the root one object for each rank, that pickle takes, each of less than 2 GiB; not looked at on
                the others.
            root: the rank that sends.
            timeout, name: as for `broadcast_object`.

        Returns:
            a copy of the object for this rank.

        Raises:
            TypeError: values is no sequence, pickle refuses one of them, or something else that pickling raised: on
                every rank.
            ValueError: values are more or fewer than the ranks, or a pickle is too long, on every rank; or root is no
                rank.
        """
        root, options = root_number(root, self.size), Moving(timeout=timeout, name=name)
        return ObjectExchange(self, f"scatter_object from {root}", options).scatter(values, root)

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
        dtype = arrays.numpy_dtype(dtype)
        if device is None:
            return self.backend.empty(extents, dtype)
        from pycollective.comm.cuda.runtime import device_number

        return self.gpu_side(device_number(device)).empty(extents, dtype)

    def check(self) -> None:
        """Raise what went wrong in calls on GPU arrays that are under way or have completed, if anything did.

        Does not wait for them.
        """
        if self.gpu is not None:
            self.gpu.check()

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
        return self._split(color, key, name, "split")

    def dup(self) -> Communicator:
        """Collective: a communicator of the same ranks, whose calls do not mix with this one's.

        Returns:
            a communicator.

        Raises:
            CommunicatorError: no memory can be shared.
        """
        self.backend.require_turn()
        made = self._split(0, self.rank, f"{self.name}/dup{next(self._made)}", "dup")
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
        members = checks.integers(ranks, "ranks")
        if len(set(members)) != len(members) or not all(0 <= rank < self.size for rank in members):
            raise ValueError(f"ranks {members} are not different ranks of a communicator of {self.size}")
        place = members.index(self.rank) if self.rank in members else None
        return self._split(None if place is None else 0, place or 0, None, f"group({members})")

    def _split(self, color: int | None, key: int, name: str | None, operation: str) -> Communicator | None:
        """`operation`: which of the methods that split it is, with what all ranks must give alike."""
        mine = None if color is None else checks.integer(color, "color", *_INT64)
        key = checks.integer(key, "key", *_INT64)
        if name is not None:
            checks.text(name, "name")
        self.backend.require_turn()
        number = next(self._made)
        told = _COLORS.decode_all(self.backend.exchange(_COLORS.encode((mine, key)), operation))
        chosen = [(theirs, rank) for rank, (other, theirs) in enumerate(told) if mine is not None and other == mine]
        members = [rank for _, rank in sorted(chosen)]
        made = self.backend.split(members, mine, key, name or f"{self.name}/split{number}:{color}")
        return None if made is None else Communicator(made)

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
        return Communicator(self.backend.shrink(checks.number(timeout, "timeout", 0, finite=False)))

    def free(self) -> None:
        """Say goodbye: this rank calls nothing on this communicator any more. May be called twice."""
        _live.discard(self)
        if self.gpu is not None:
            self.gpu.close()
        self.backend.close()

    def depart(self) -> None:
        """At exit: free(), but between hosts, where that takes the others, who may be gone."""
        if self._team is not None:
            self.free()

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
        gpu = "" if self.gpu is None else self.gpu.describe()
        return explain(self.backend, gpu, collective, nbytes, topology)


def forget_all() -> None:
    """In a forked child: the communicators are the parent's, and a child's end is not the parent's."""
    _live.clear()


def depart_all() -> None:
    """At exit: finish what is in flight, and tell the peers that this rank has ended as it should."""
    for communicator in list(_live):
        communicator.depart()


def _enter_at_once(name: str) -> None:
    """Let a call of plain arrays enter the core without a Python frame: it halves the cost of a small call.

    The methods belong to the class itself, as those of a base would look through the bases with every call.
    """
    method = getattr(Communicator, name)
    parameters = [p.replace(annotation=p.empty) for p in inspect.signature(method).parameters.values()]
    signature = str(inspect.Signature(parameters)).replace(
        "(self", "($self", 1
    )  # inspect refuses annotations in a text
    setattr(Communicator, name, _core.fast_method(Communicator, method, name, signature))


for _name in (*COLLECTIVES, "send", "recv"):
    _enter_at_once(_name)
