"""The engine for ranks without shared memory (several hosts): rounds of messages, like Horovod's controller.

In every round all ranks exchange what they have submitted since the last one. `_core.Agreement` derives the batches
from it, by the same rules as in shared memory (csrc/engine/negotiation/policy.h); this file exchanges the messages and
runs the batches. Each operation takes a round trip longer than in shared memory.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from pycollective import _core
from pycollective.comm.arguments import arrays
from pycollective.comm.arguments.arrays import flat
from pycollective.comm.control import Codec, Fault
from pycollective.comm.hosts.control_channel import ControlChannel
from pycollective.engine import clocks
from pycollective.engine.operation import Item
from pycollective.engine.round_trace import Event, RoundTrace
from pycollective.engine.round_work import RoundWork
from pycollective.engine.settings import Settings
from pycollective.engine.stalls import Stalls
from pycollective.errors import CommunicatorError, Error, MismatchError, NestedCallError, PeerLostError
from pycollective.schedule.collectives import OPERATIONS

if TYPE_CHECKING:
    from pycollective.comm.communicator import Communicator

LONGEST_PAUSE = 0.01
"""Seconds between rounds while no operation is in progress."""


class RoundMessage(msgspec.Struct, array_like=True):
    """A rank's message in a round.

    Attributes:
        announced: announcements of operations submitted since the last round; those announced before, by number.
        tuned: fusion threshold in bytes and cycle time in seconds from now on; None: unchanged.
        closing: the rank has shut its engine down.
        fault: an error that ends the engine on all ranks.
        refused: names of operations whose submission was refused since the last round, and why.
    """

    announced: list[bytes | int]
    tuned: tuple[int, float] | None
    closing: bool
    fault: Fault | None
    refused: list[tuple[str, str]]


_ROUNDS: Codec[RoundMessage] = Codec(RoundMessage)


class Rounds:
    """The interface of `_core.Engine`, over a communicator that spans hosts."""

    def __init__(self, comm: Communicator, run: Callable[..., None], settings: Settings) -> None:
        """Collective. `run`: runs a batch other than allreduces in host memory, as for `_core.Engine`."""
        self._comm, self._run_batch = comm, run
        self._channel = ControlChannel(comm.backend, "rounds")
        self._stalls = Stalls(comm.name, comm.rank, settings.stall_warning_time, settings.stall_shutdown_time)
        self._limit = min(_core.timeout_of(None), settings.stall_shutdown_time or float("inf"))
        self._began = time.monotonic()
        self._lock = threading.RLock()  # a signal handler may run while this thread holds it
        self._ident: int | None = None  # of the thread that runs the rounds
        self._news: list[bytes] = []
        self._refused: list[tuple[str, str]] = []
        self._tuned: tuple[int, float] | None = None
        self._closing = False
        self._works: dict[str, RoundWork] = {}
        self._fault: Error | None = None
        self._submitted = threading.Event()
        # The following state is the same on all ranks.
        self._agreement = _core.Agreement(comm.world_ranks)
        self._known: dict[bytes, int] = {}
        self._numbered: list[bytes] = []
        self._capacity = settings.cache_capacity
        self.threshold, self.cycle_seconds = settings.fusion_threshold, settings.cycle_time

        self._buffer = np.empty(0, np.uint8)
        self._traffic = (0, 0)
        self._trace = RoundTrace()

    def submit(self, items: Sequence[Item], now: bool, grouped: bool = True) -> list[RoundWork]:
        if now:
            self.require_outside()
        news = _core.announcements(items, self._comm.size, grouped)
        names = [item.name for item in items]
        works = [RoundWork(item, self.require_outside) for item in items]
        with self._lock:
            if self._fault is not None:
                raise self._fault
            for number, name in enumerate(names):
                if name in self._works or name in names[:number]:
                    raise ValueError(f"an operation named {name!r} is in progress: wait for it, or use another name")
            self._works.update(zip(names, works, strict=True))
            self._news.extend(news)
        self._submitted.set()
        return works

    def run(self, items: Sequence[Item]) -> list[Any]:
        """See Engine.run."""
        return [work.wait() for work in self.submit(items, True)]

    def refuse(self, name: str, why: str) -> None:
        """See Engine.refuse."""
        with self._lock:
            self._refused.append((name, why))
        self._submitted.set()

    def reduce_group(self, *_: object) -> None:
        """Groups are announced item by item: see Engine.reduce_group."""

    # -- rounds ----------------------------------------------------------------------------------------------------

    def loop(self) -> None:
        """The engine's thread; returns when a rank has closed, or after a fault."""
        self._ident = threading.get_ident()
        pause = self.cycle_seconds
        try:
            while True:
                busy, end = self._round()
                if end is not None:  # agreed
                    self._fail(end)
                    self._channel.close()
                    return
                pause = self.cycle_seconds if busy else min(2 * pause + 1e-4, LONGEST_PAUSE)
                if self._agreement.waiting:
                    time.sleep(min(pause, self.cycle_seconds))
                else:
                    self._submitted.wait(pause)
                    self._submitted.clear()
        except Exception as error:
            self._break(error if isinstance(error, Error) else CommunicatorError(f"{type(error).__name__}: {error}"))

    def _round(self) -> tuple[bool, Error | None]:
        """One exchange and its consequences: (whether operations are pending, error that ends all ranks' engines)."""
        with self._lock:
            news, self._news = self._news, []
            refused, self._refused = self._refused, []
            tuned, self._tuned = self._tuned, None
            closing = self._closing
        fault: Error | None = self._stalls.overdue(self._agreement) if self._comm.rank == 0 else None
        announced = [self._known.get(one, one) for one in news]
        failure = _core.Team.failure() if closing else ""
        if failure:
            fault = PeerLostError(
                f"rank {self._comm.rank} is gone (its program has failed: {failure})", self._comm.rank
            )
        mine = RoundMessage(announced, tuned, closing, Fault.of(fault) if fault is not None else None, refused)
        self._began = time.monotonic()
        answers = self._channel.exchange(_ROUNDS.encode(mine), self._limit, self._inspect)
        busy = self._agreement.waiting > 0
        end: Error | None = None
        if len(self._numbered) > self._capacity:
            self._known, forgotten, self._numbered = {}, self._numbered, []
        else:
            forgotten = self._numbered
        for rank, one in enumerate(_ROUNDS.decode_all(answers)):
            self.threshold, self.cycle_seconds = one.tuned or (self.threshold, self.cycle_seconds)
            if end is None and one.fault is not None:
                end = one.fault.error()
            if end is None and one.closing:
                end = CommunicatorError(f"rank {rank} has shut its engine down, or its program has ended")
                end.rank = rank
            busy = busy or bool(one.announced)
            for name, why in one.refused:
                self._agreement.refuse(rank, name, why)
            for announcement in one.announced:
                if isinstance(announcement, bytes):
                    self._note(rank, announcement)
                elif 0 <= announcement < len(forgotten):
                    self._note(rank, forgotten[announcement])
                else:
                    raise CommunicatorError(
                        f"rank {rank} has announced an operation by the unknown number {announcement}"
                    )
        self._inspect([])
        ready = clocks.now()
        for batch in self._agreement.cut(self.threshold):
            self._run(batch, ready)
        return busy, end

    def _inspect(self, silent: Sequence[int]) -> None:
        self._stalls.look(self._agreement, silent, self._began)

    def _note(self, rank: int, announcement: bytes) -> None:
        if announcement not in self._known:  # from now on its number is sufficient
            self._known[announcement] = len(self._numbered)
            self._numbered.append(announcement)
        try:
            self._agreement.announce(rank, announcement)
        except ValueError as error:
            raise CommunicatorError(f"invalid announcement of rank {rank}: {error}") from None

    # -- running ---------------------------------------------------------------------------------------------------

    def _run(self, batch: list[_core.AgreedOperation], ready: int) -> None:
        begin, first = clocks.now(), batch[0]
        works = [self._works.get(one.name) for one in batch]
        error: Error | None = None
        self._traffic = (self._traffic[0], self._traffic[1] + 1)
        if first.difference:
            error = MismatchError(first.difference)
        elif first.collective == "join":
            for work in filter(None, works):
                work.result = first.last
        elif OPERATIONS[first.collective].fused and not first.device:
            self._allreduce(batch, works)
        else:
            self._run_here(batch, works)
        if error is None:
            self._trace.batch(batch, works, ready, begin)
        for one in batch:
            self._finish(one.name, error)

    def _run_here(self, batch: list[_core.AgreedOperation], works: Sequence[RoundWork | None]) -> None:
        """Run what the communicator's own collectives do: see Engine.run_batch."""
        s = batch[0]
        rows = [(work, one.shape, one.rows, one.absent, -1) for one, work in zip(batch, works, strict=True)]
        self._run_batch(s.collective, s.device, s.dtype, s.op, s.prescale, s.postscale, rows)

    def _allreduce(self, batch: list[_core.AgreedOperation], works: Sequence[RoundWork | None]) -> None:
        s = batch[0]
        sizes = [one.count for one in batch]
        alone = works[0] if len(batch) == 1 else None
        if alone is not None:  # in place
            x, out = flat(arrays.readable(alone.item.x)), flat(arrays.writable(alone.item.out))
        else:
            x = out = self._room(sum(sizes), arrays.numpy_dtype(s.dtype))
        pieces = [out[end - count : end] for end, count in zip(itertools.accumulate(sizes), sizes, strict=True)]
        with self._trace.span("pack", alone is None):
            for work, piece in zip(works, pieces, strict=True):
                if work is None:
                    piece[...] = 0
                elif work is not alone:
                    piece[...] = flat(arrays.readable(work.item.x))
        with self._trace.span("between_hosts"):
            self._comm.allreduce(x, out=out, op=s.op, prescale=s.prescale, postscale=s.postscale)
        with self._trace.span("unpack", alone is None):
            for work, piece in zip(works, pieces, strict=True):
                if work is not None and work is not alone:
                    flat(arrays.writable(work.item.out))[...] = piece
                if work is not None:
                    work.result = work.item.out
        self._traffic = (self._traffic[0] + out.nbytes, self._traffic[1])

    def _room(self, count: int, dtype: np.dtype[Any]) -> Any:
        """The fusion buffer; it grows up to the threshold."""
        if self._buffer.nbytes < count * dtype.itemsize:
            self._buffer = np.empty(count * dtype.itemsize, np.uint8)
        return self._buffer[: count * dtype.itemsize].view(dtype)

    def _finish(self, name: str, error: Error | None) -> None:
        with self._lock:
            work = self._works.pop(name, None)
        if work is not None:
            work.error = work.error or error
            work.finish()

    def _break(self, error: Error) -> None:
        """Handle an error after which neither this rank nor the others can continue."""
        self._comm.backend.fail(error)
        self._channel.send_error(error)
        self._fail(error)

    def _fail(self, error: Error) -> None:
        with self._lock:
            self._fault = error
            names = list(self._works)
        for name in names:
            self._finish(name, error)

    # -- the rest of _core.Engine's surface ------------------------------------------------------------------------

    def close(self) -> None:
        """The thread notifies the others in its next round, and ends."""
        with self._lock:
            self._closing = True
        self._submitted.set()

    def require_outside(self) -> None:
        """Raise NestedCallError if the caller is the thread that runs the rounds: it cannot wait for itself."""
        if threading.get_ident() == self._ident:
            raise NestedCallError.on(self._comm.name)

    def tune(self, threshold: int, cycle_seconds: float) -> None:
        """Set the parameters of all ranks, from their next round on."""
        with self._lock:
            self._tuned = (threshold, cycle_seconds)

    def set_topologies(self, rows: Sequence[tuple[int, str]]) -> None:
        """Does nothing: between hosts there is only one topology."""

    def traffic(self) -> tuple[int, int]:
        return self._traffic

    def report(self) -> str:
        return self._agreement.report()

    def trace(self, on: bool) -> None:
        self._trace.on = on

    def take_events(self) -> tuple[list[Event], list[Any]]:
        """Between hosts there are no steps."""
        return self._trace.take(), []
