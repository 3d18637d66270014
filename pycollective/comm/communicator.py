"""The communicator: an ordered set of ranks, and the collectives among them."""

from __future__ import annotations

import inspect
import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pycollective import _core, checks
from pycollective.comm import arrays, calls
from pycollective.comm.calls import KIND
from pycollective.comm.explain import Explanation, explain
from pycollective.comm.nodes import Nodes
from pycollective.comm.nonblocking import Nonblocking
from pycollective.comm.operators import Op
from pycollective.comm.options import Options, waiting
from pycollective.comm.rail_calls import RailCalls

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from pycollective.comm.cuda.calls import GpuSide
    from pycollective.comm.cuda.nccl_comm import NcclCalls

_ALLREDUCE, _BROADCAST = KIND["allreduce"], KIND["broadcast"]
_live: weakref.WeakSet[Communicator] = weakref.WeakSet()


class Communicator(Nonblocking):
    """An ordered set of ranks. Made by `pycollective.init`, `local_world`, `split`, `dup`, `group` and `shrink`.

    Every collective must be called by all ranks, in the same order, with matching arguments; MismatchError tells
    every rank where that is not so. Arrays are NumPy arrays or anything that speaks DLPack on the CPU (torch tensors),
    of any shape, C-contiguous (an input that is not is copied; an output that is not is refused). Those made by
    `empty` are shared between the ranks and used in place; others are staged through shared scratch. A collective
    returns its result: a new array of x's library, or `out` where given; `out=x` works in place.

    Keyword arguments that the collectives share:
        op: sum, avg, prod, min, max, band, bor, bxor, land, lor, or `pycollective.op(function)`.
        topology: a name ("ring"), "name(parameter=value)", a topology class or instance; default `direct`, which
            reduces in rank order 0..n-1 whatever the size, so that results have the same bits every time.
        prescale, postscale: factors on each contribution and on the result.
        timeout: seconds to wait for the peers; default PYCOLLECTIVE_TIMEOUT.
        name: named in this call's errors.
        stream: for GPU arrays: the stream that the call is put into, a handle or a stream object of the array's
            library; default the library's current stream. Must be None for CPU arrays.
        max_channels: for GPU arrays: most thread blocks that the call may take; the same on all ranks.

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

    # -- reductions ------------------------------------------------------------------------------------------------

    def allreduce(
        self,
        x: Any,
        out: Any = None,
        *,
        op: str | Op = "sum",
        topology: Any = None,
        prescale: float | None = None,
        postscale: float | None = None,
        timeout: float | None = None,
        name: str | None = None,
        stream: Any = None,
        max_channels: int | None = None,
    ) -> Any:
        """Every rank gets the reduction of all ranks' x, element by element.

        Args:
            x: array of any shape, the same shape and dtype on every rank.
            out: where the result goes, of x's size and dtype.
        """
        if prescale is None and postscale is None and name is None and stream is None and max_channels is None:
            result = self._call(_ALLREDUCE, x, out, op, topology, -1, None, None, timeout, False)
            if result is not NotImplemented:
                return result
        options = _options(op, topology, prescale, postscale, timeout, name, stream, max_channels)
        return self._run(calls.allreduce(x, out), options)

    def reduce(self, x: Any, root: int = 0, out: Any = None, **options: Unpack[Options]) -> Any:
        """The root gets the reduction of all ranks' x; the others get None, and their `out` is not used."""
        return self._run(calls.reduce(x, root, out, self.rank), options)

    def reduce_scatter(self, x: Any, out: Any = None, **options: Unpack[Options]) -> Any:
        """Each rank gets its rows of the reduction: x's first axis is cut as numpy.array_split cuts it.

        Args:
            x: array of shape (rows, ...), the same on every rank.
            out: array of rank r's share: rows // size rows, one more for the first rows % size ranks.
        """
        return self._run(calls.reduce_scatter(x, out, self.rank, self.size), options)

    # -- moving data -----------------------------------------------------------------------------------------------

    def broadcast(self, x: Any, root: int = 0, out: Any = None, **options: Unpack[Options]) -> Any:
        """Every rank gets the root's x. On the others x gives shape and dtype only; `out=x` fills it in place."""
        if not options:
            try:
                result = self._call(_BROADCAST, x, out, "sum", None, root, None, None, None, False)
            except TypeError:
                calls.rank_number(root, "root")
                raise
            if result is not NotImplemented:
                return result
        return self._run(calls.broadcast(x, root, out), options)

    def allgather(self, x: Any, out: Any = None, **options: Unpack[Options]) -> Any:
        """Every rank gets all ranks' x, joined along the first axis in rank order.

        Args:
            x: array of shape (rows, ...), the same on every rank; 0-d counts as one row.
            out: array of shape (size * rows, ...).
        """
        shape = arrays.shape_of(x)
        return self._run(calls.allgather(x, out, (shape[0] if shape else 1,) * self.size), options)

    def allgatherv(
        self, x: Any, counts: Sequence[int] | None = None, out: Any = None, **options: Unpack[Options]
    ) -> Any:
        """allgather of arrays whose numbers of rows differ.

        Args:
            x: array of shape (rows, ...); the other axes agree between ranks.
            counts: rows of every rank; None asks the ranks first.
            out: array of shape (sum(counts), ...).

        Raises:
            ValueError: x has not counts[rank] rows.
        """
        if counts is None:
            shape = arrays.shape_of(x)
            rows = np.array([shape[0] if shape else 1], np.int64)
            counts = [int(n) for n in self.allgather(rows, **waiting(options))]
        return self._run(calls.allgatherv(x, out, counts, self.rank, self.size), options)

    def gather(self, x: Any, root: int = 0, out: Any = None, **options: Unpack[Options]) -> Any:
        """The root gets all ranks' x, joined along the first axis in rank order; the others get None."""
        return self._run(calls.gather(x, root, out, self.rank, self.size), options)

    def scatter(self, x: Any, root: int = 0, out: Any = None, **options: Unpack[Options]) -> Any:
        """Each rank gets its rows of the root's x, cut as numpy.array_split cuts them.

        Args:
            x: at the root the whole array; elsewhere an array of the same shape and dtype (its content is not
                read), or None where `out` is given and all ranks get equally much.
        """
        return self._run(calls.scatter(x, root, out, self.rank, self.size), options)

    def alltoall(self, x: Any, out: Any = None, **options: Unpack[Options]) -> Any:
        """Rank r gets the r-th piece of every rank's x, joined in rank order; pieces as numpy.array_split cuts."""
        return self._run(calls.alltoall(x, out, self.rank, self.size), options)

    def alltoallv(
        self,
        x: Any,
        send_counts: Sequence[int],
        recv_counts: Sequence[int] | None = None,
        out: Any = None,
        **options: Unpack[Options],
    ) -> Any:
        """alltoall with pieces of any size.

        Args:
            x: array of shape (sum(send_counts), ...).
            send_counts: rows for each rank.
            recv_counts: rows expected from each rank; checked, not needed.
            out: array of shape (sum of what is received, ...).

        Raises:
            MismatchError: on every rank, if somewhere recv_counts are not what the others send.
        """
        return self._run(self._alltoallv(x, send_counts, recv_counts, out, options), options)

    def barrier(self, **options: Unpack[Options]) -> None:
        """Return once every rank has called.

        With `stream=` return at once: that stream is held back until every rank's has come so far.
        """
        self._run(calls.barrier(), options)

    def send(self, x: Any, dest: int, *, timeout: float | None = None) -> None:
        """Send x to one rank, which must `recv` it. Messages between two ranks arrive in order.

        A message of up to 32 KiB does not wait for the receiver; of longer ones two at a time can be under way.
        Messages of GPU arrays go through host memory.
        """
        self._transfer(self.rank, dest, x if type(x) is np.ndarray else arrays.message(x), None, timeout, False)

    def recv(self, out: Any, source: int, *, timeout: float | None = None) -> Any:
        """Receive into `out` (of the message's size and dtype, else MismatchError) what `source` sends; returns it."""
        own = type(out) is np.ndarray
        if not own and arrays.on_device(out):
            return self.irecv(out, source, timeout=timeout).result()
        self._transfer(source, self.rank, None, out if own else arrays.writable(out), timeout, False)
        return out

    # -- windows and other communicators -------------------------------------------------------------------------------

    def empty(self, shape: int | Sequence[int], dtype: Any = np.float64, *, device: str | int | None = None) -> Any:
        """Collective: an uninitialised NumPy array in memory that all ranks share, for collectives without copies.

        With `device="cuda"` (or "cuda:1", or a device's number) a `DeviceArray` in GPU memory that all ranks have
        mapped: `torch.from_dlpack` and `cupy.from_dlpack` make an array of theirs of it without a copy.

        Every rank makes the same shape and dtype. Collectives are zero-copy where every rank passes an array (or a
        contiguous view of one) made by `empty` of this communicator. The memory lives as long as the array.

        Raises:
            MismatchError: shapes or dtypes differ between ranks. CommunicatorError: no memory can be shared.
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
        """
        from pycollective.comm.subsets import split

        return split(self, color, key, name)

    def dup(self) -> Communicator:
        """Collective: a communicator of the same ranks, whose calls do not mix with this one's."""
        from pycollective.comm.subsets import split

        self._backend.require_turn()
        made = split(self, 0, self.rank, f"{self.name}/dup{next(self._numbers)}", "dup")
        assert made is not None
        return made

    def group(self, ranks: Sequence[int]) -> Communicator | None:
        """Collective over all ranks: a communicator of `ranks`, in that order; None on the others.

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


def _options(
    op: str | Op, topology: Any, prescale: float | None, postscale: float | None, timeout: float | None,
    name: str | None, stream: Any, max_channels: int | None,
) -> Options:  # fmt: skip
    return Options(
        op=op,
        topology=topology,
        prescale=prescale,
        postscale=postscale,
        timeout=timeout,
        name=name,
        stream=stream,
        max_channels=max_channels,
    )


if not TYPE_CHECKING:  # the same method, entered without a Python frame: it halves the cost of a small call
    _SIGNATURE = str(  # without annotations, which inspect.signature refuses in a text
        inspect.Signature(
            [p.replace(annotation=p.empty) for p in inspect.signature(Communicator.allreduce).parameters.values()]
        )
    ).replace("(self", "($self", 1)
    Communicator.allreduce = _core.fast_allreduce(Communicator, Communicator.allreduce, _SIGNATURE)
