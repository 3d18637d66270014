"""The MPI rail behind the same call as a team's: for communicators that span hosts."""

from __future__ import annotations

import functools
import math
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

import numpy as np

from pycollective import _core
from pycollective.comm.arrays import numpy_dtype
from pycollective.comm.mpi_rail import MpiRail
from pycollective.comm.operators import NAMES, Op
from pycollective.comm.teams import setting
from pycollective.errors import CommunicatorError, NestedCallError, TimeoutError
from pycollective.schedule.collectives import CALLS, Collective

_ROWS = tuple(CALLS.values())


class _Flight:
    """A nonblocking call on the rail's thread."""

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


class RailCalls:
    """`call` has the arguments of `_core.Team.call`.

    Nonblocking calls run on one thread of their own; a blocking call that follows queues up behind them, so that MPI
    sees the collectives of a rank in one order.
    """

    def __init__(self, rail: MpiRail) -> None:
        self.rail = rail
        self.rank, self.size = rail.rank, rail.size
        self._thread: ThreadPoolExecutor | None = None
        self._ident: int | None = None  # of that thread
        self._closed = False

    @property
    def poisoned(self) -> bool:
        """Whether a fault has ended it."""
        return self.rail.fault is not None

    def call(
        self,
        kind: int,
        x: Any,
        out: Any,
        op: str | Op,
        topology: object,
        root: int,
        counts: tuple[int, ...] | None,
        scale: tuple[float, float] | None,
        timeout: float | None,
        nonblocking: bool,
        note: str | None = None,
    ) -> Any:
        """Run a collective over MPI. `topology` is MPI's business here and not used."""
        if not all(a is None or type(a) in (np.ndarray, _core.HostBuffer) for a in (x, out)):
            return NotImplemented
        if isinstance(out, np.ndarray) and not out.flags.c_contiguous:
            return NotImplemented
        if self._closed:
            raise CommunicatorError("the communicator was freed")
        self.require_turn()
        row, limit = _ROWS[kind], _seconds(timeout)
        source, target = _as_numpy(x), _as_numpy(out)
        like_input = not row.in_blocks and row.has_output(self.rank, root) and row.has_result(self.rank)
        if out is None and like_input and source is not None:
            out = target = np.empty(source.shape, source.dtype)
        self._check(row, source, target, op, root)
        more = self._arguments(row, op, root, counts, scale) | {"seconds": limit}
        if nonblocking or self._thread is not None:
            future = self._worker().submit(self._run, row, source, target, more)
            if nonblocking:
                return _Flight(future)
            future.result()
        else:
            self._run(row, source, target, more)
        return out

    def _check(self, row: Collective, x: Any, out: Any, op: str | Op, root: int) -> None:
        if row.rooted and not 0 <= root < self.size:
            raise ValueError(f"root {root} is not a rank of this communicator of {self.size}")
        if out is not None and not out.flags.writeable:
            raise ValueError("out is read-only")
        if x is not None and out is not None and x.dtype != out.dtype:
            raise TypeError(f"x is {x.dtype} but out is {out.dtype}")
        if not row.reduces:
            return
        dtype = _core.dtype_name(x.dtype)
        if isinstance(op, str) and op not in NAMES:
            raise ValueError(f"no operator is called {op!r}; there are {', '.join(NAMES)} and pycollective.op(fn)")
        if dtype is None or (isinstance(op, str) and not _core.takes(op, dtype)):
            raise TypeError(f"operator {op} does not take {x.dtype}")

    def _arguments(
        self, row: Collective, op: str | Op, root: int, counts: Any, scale: tuple[float, float] | None
    ) -> dict[str, Any]:
        more: dict[str, Any] = {"op": op.function if isinstance(op, Op) else op, "root": root}
        if scale is not None:
            more["prescale"], more["postscale"] = scale
        if counts is not None and row.split == "pairs":
            more["counts"] = counts[self.rank * self.size : (self.rank + 1) * self.size]
            more["recv_counts"] = counts[self.rank :: self.size]
        elif counts is not None:
            more["counts"] = counts
        return more

    def _run(self, row: Collective, x: Any, out: Any, more: dict[str, Any]) -> None:
        if row.single_buffer and self.rank == more["root"] and x is not out:
            out.reshape(-1)[...] = x.reshape(-1)
        flat = [None if a is None else a.reshape(-1) for a in (x, out)]  # packs an x that is not contiguous
        self.rail.run(row.name, flat[1] if row.single_buffer else flat[0], flat[1], **more)

    def send(self, x: Any, dest: int, timeout: float | None = None) -> None:
        """Blocking send."""
        self.rail.run("send", _as_numpy(x).reshape(-1), None, root=dest, seconds=_seconds(timeout))

    def receive(self, out: Any, source: int, timeout: float | None = None) -> None:
        """Blocking receive."""
        self.rail.run("recv", None, _as_numpy(out).reshape(-1), root=source, seconds=_seconds(timeout))

    def require_turn(self) -> None:
        """Raise if the caller is the rail's thread, which carries the nonblocking calls out: it cannot wait for itself.

        Elsewhere a call in a signal handler takes part in what the others call then, as any call does.
        """
        if threading.get_ident() == self._ident:
            raise NestedCallError.on("between hosts")

    def _note_thread(self) -> None:
        self._ident = threading.get_ident()

    def background(self, action: Any, *arguments: Any) -> _Flight:
        """Run something on the rail's thread."""
        return _Flight(self._worker().submit(action, *arguments))

    def _worker(self) -> ThreadPoolExecutor:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="pycollective-rail", initializer=self._note_thread)
        return self._thread

    def close(self) -> None:
        """Collective; may be called twice. Later calls raise."""
        self.require_turn()
        self._closed = True
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None
        self.rail.free()


@functools.cache
def default_timeout() -> float:
    """Seconds that a call waits for its peers, unless it says otherwise."""
    return setting("PYCOLLECTIVE_TIMEOUT")


def _seconds(timeout: float | None) -> float:
    if timeout is None:
        return default_timeout()
    if not timeout >= 0:
        raise ValueError(f"timeout must be a number of seconds, 0 or more, not {timeout!r}")
    return float(timeout)


def _as_numpy(array: Any) -> Any:
    if isinstance(array, _core.HostBuffer):
        return array.array(numpy_dtype(array.dtype))
    return array
