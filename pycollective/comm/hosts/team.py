"""The backend of ranks on several hosts: every collective over MPI, on arrays in CPU memory."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

import numpy as np

from pycollective import _core
from pycollective.comm.arguments import arrays
from pycollective.comm.arguments.operators import NAMES, Op
from pycollective.comm.backend import HostBackend
from pycollective.comm.explain import Explanation, explain_between_hosts
from pycollective.comm.group import Group
from pycollective.comm.host import team
from pycollective.comm.hosts.mpi_rail import MpiRail
from pycollective.comm.request import CallRequest
from pycollective.errors import CommunicatorError, Error, MismatchError, NestedCallError, TimeoutError
from pycollective.schedule.collectives import CALLS


class _FutureWork:
    """A nonblocking call on the backend's thread."""

    def __init__(self, future: Future[None]) -> None:
        self._future = future

    def wait(self, timeout: float | None = None) -> None:
        if timeout is not None and math.isnan(timeout):
            raise ValueError("timeout must be a number of seconds, not nan")
        try:
            self._future.result(timeout)
        except FutureTimeout:
            raise TimeoutError("the call has not completed yet; the handle can be waited for again") from None

    def test(self) -> bool:
        return self._future.done()


class HostsTeam:
    """One rank's part of a communicator that spans hosts. A HostBackend.

    Nonblocking calls run on one dedicated thread; a following blocking call queues behind them, so that MPI
    sees the collectives of a rank in one order. The topology of a request is not used.

    Args:
        rail: the collectives over MPI; owned by the backend.
        group: the ranks.
    """

    team = outgoing = incoming = None

    def __init__(self, rail: MpiRail, group: Group) -> None:
        self.rail, self.group = rail, group
        self._thread: ThreadPoolExecutor | None = None
        self._ident: int | None = None  # of the worker thread
        self._closed = False

    # -- calls ---------------------------------------------------------------------------------------------------------

    def channel(self, peer: int, sends: bool) -> None:
        return None

    def run(self, request: CallRequest) -> None:
        prepared = self._prepare(request)
        if self._thread is None or request.collective in ("send", "recv"):  # MPI orders these separately
            self._run(*prepared)
        else:
            self._thread.submit(self._run, *prepared).result()

    def start(self, request: CallRequest) -> _FutureWork:
        return _FutureWork(self._worker().submit(self._run, *self._prepare(request)))

    def _prepare(self, request: CallRequest) -> tuple[CallRequest, Any, Any, float]:
        """The arguments of `_run`, after all checks that this rank can do alone."""
        if self._closed:
            raise CommunicatorError("the communicator was freed")
        self.require_turn()
        x, out = _as_numpy(request.x), _as_numpy(request.out)
        seconds = _core.timeout_of(request.timeout)
        self._check(request, x, out)
        return request, x, out, seconds

    def _check(self, request: CallRequest, x: Any, out: Any) -> None:
        row = CALLS.get(request.collective)
        if row is None or row.is_message:  # whose ranks were checked with the arguments
            return
        _core.check_call(request.collective, self.group.rank, self.group.size, request.root, request.counts, x, out)
        if not row.reduces:
            return
        dtype, op = _core.dtype_name(x.dtype), request.op
        if isinstance(op, str) and op not in NAMES:
            raise ValueError(f"no operator is called {op!r}; there are {', '.join(NAMES)} and pycollective.op(fn)")
        if dtype is None or (isinstance(op, str) and not _core.takes(op, dtype)):
            raise TypeError(f"operator {op} does not take {x.dtype}")

    def _run(self, request: CallRequest, x: Any, out: Any, seconds: float) -> None:
        flat = [None if a is None else a.reshape(-1) for a in (x, out)]  # packs an x that is not contiguous
        counts, received = request.counts, None
        if counts is not None and request.row.split == "pairs":
            rank, size = self.group.rank, self.group.size
            counts, received = counts[rank * size : (rank + 1) * size], counts[rank::size]
        scale = request.scale or (None, None)
        op = request.op.function if isinstance(request.op, Op) else request.op
        self.rail.run(
            request.collective, *flat, op=op, root=request.root, counts=counts, recv_counts=received,
            prescale=scale[0], postscale=scale[1], seconds=seconds,
        )  # fmt: skip

    def exchange(self, data: bytes, operation: str = "an exchange of bytes") -> list[bytes]:
        # MPI compares no fingerprints, so the operation is sent with the data.
        name = operation.encode()
        mine = np.frombuffer(name + b"\0" + data, np.uint8)
        counts = self._allgather(np.array([len(mine)], np.int64), (1,) * self.group.size)
        lengths = tuple(int(n) for n in counts)
        messages = [message.split(b"\0", 1) for message in team.cut(self._allgather(mine, lengths), lengths)]
        for rank, (other, _) in enumerate(messages):
            if other != name:
                raise MismatchError(f"rank {self.group.rank} calls {operation}, rank {rank} calls {other.decode()}")
        return [message for _, message in messages]

    def _allgather(self, x: np.ndarray[Any, Any], counts: tuple[int, ...]) -> np.ndarray[Any, Any]:
        out = np.empty(sum(counts), x.dtype)
        self.run(CallRequest("allgather", x, out, counts=counts))
        return out

    # -- windows, which need shared memory -----------------------------------------------------------------------------

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        return np.empty(shape, dtype)

    def window_number(self, shape: tuple[int, ...], dtype: str) -> int:
        self.require_turn()
        self.exchange(b"", f"empty({shape}, {dtype})")
        return 0

    def share(self, nbytes: int) -> None:
        return None

    # -- other groups of ranks -----------------------------------------------------------------------------------------

    def split(self, members: Sequence[int], color: int | None, key: int, name: str) -> HostBackend | None:
        """A part on one host shares memory; any other part uses MPI."""
        part = self.group.part(members, name) if members else None
        shared = part is not None and part.nodes.count == 1
        joined = team.connect(self.exchange, self.group.rank, members if shared else [], part if shared else None)
        rail = self.rail.split(None if shared else color, key)
        if rail is None or part is None:
            return joined
        return HostsTeam(rail, part)

    def shrink(self, timeout: float) -> HostBackend:
        """MPI finds the survivors, if it was started to tolerate the loss of ranks."""
        if not timeout >= 0:
            raise ValueError(f"timeout must be a number of seconds, 0 or more, not {timeout}")
        rail, ranks = self.rail.shrink(timeout)
        made = HostsTeam(rail, self.group.part(ranks, f"{self.group.name}/shrunk"))
        if made.group.nodes.count > 1:
            return made
        shared = made.split(range(len(ranks)), 0, made.group.rank, f"{made.group.name}/dup0")
        assert shared is not None
        return shared

    # -- errors and shutdown -------------------------------------------------------------------------------------------

    @property
    def poisoned(self) -> bool:
        return self.rail.fault is not None

    @property
    def closed(self) -> bool:
        return self._closed

    def require_turn(self) -> None:
        """Raise if the caller is the thread that executes the nonblocking calls: it cannot wait for itself.

        On other threads, a call in a signal handler pairs with the next call of the other ranks, like any call.
        """
        if threading.get_ident() == self._ident:
            raise NestedCallError.on("between hosts")

    def check(self) -> None:
        if self.rail.fault is not None:
            raise self.rail.fault

    def fail(self, error: Error, culprit: int = -1) -> None:
        """This rank's calls raise from now on. The other ranks reach their deadlines."""
        if self.rail.fault is None:
            self.rail.fault = error

    fail_all = fail

    def lost_peer(self) -> None:
        return None

    def is_gone(self, rank: int) -> bool:
        return False

    def has_departed(self, rank: int) -> bool:
        return False

    def close(self) -> None:
        self.require_turn()
        self._closed = True
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None
        self.rail.free()

    # -- information ---------------------------------------------------------------------------------------------------

    def explain(self, collective: str, nbytes: int, topology: Any) -> Explanation:
        return explain_between_hosts(self.group, collective, nbytes)

    def watch_calls(self, look: Callable[[], None]) -> None:
        self.rail.watch = look

    def duplicate_mpi(self) -> Any:
        return self.rail.dup().comm

    def _worker(self) -> ThreadPoolExecutor:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="pycollective-hosts", initializer=self._note_thread)
        return self._thread

    def _note_thread(self) -> None:
        self._ident = threading.get_ident()


def _as_numpy(array: Any) -> Any:
    if isinstance(array, _core.HostBuffer):
        return array.array(arrays.numpy_dtype(array.dtype))
    return array
