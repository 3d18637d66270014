"""Named operations among the ranks of a communicator, run in the background."""

from __future__ import annotations

import atexit
import functools
import logging
import os
import signal
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pycollective import _core
from pycollective.comm.control import Codec
from pycollective.engine import autotune, jobs
from pycollective.engine.operation import EngineJob, Item
from pycollective.engine.rounds import RoundExchange
from pycollective.engine.settings import Settings
from pycollective.engine.timeline import Timeline

if TYPE_CHECKING:
    from pycollective.comm.communicator import Communicator
    from pycollective.engine.device import EngineStream

Row = tuple[Any, list[int], list[int], list[int], int]
"""A batch: a rank's work (None if it has joined), shape, all ranks' rows, joined ranks, place."""

LEAST_SLOTS = 8192
"""Minimum number of operations that can be in progress at a time."""
MOST_SLOTS = 1 << 20
_LONGEST_REASON = 240
"""Characters of an error that the other ranks are told."""
_SETTINGS: Codec[Settings] = Codec(Settings)
_live: weakref.WeakSet[Engine] = weakref.WeakSet()
os.register_at_fork(after_in_child=_live.clear)  # in a child they belong to the parent


class Engine:
    """Named operations that ranks submit in any order; each runs once all ranks have submitted it.

    Ranks negotiate in shared memory, without a coordinator, or by messages between hosts. Allreduces that are ready at
    the same time are fused: they pass through a window together, or are reduced in place if they are in windows of
    `engine.comm`. With a topology that reduces in rank order (`direct`, the default, `star`) results with and without
    fusion are bitwise identical.

    If the ranks' operations of a name differ (shape, dtype, op, root, group), `wait` raises MismatchError on every
    rank, with both descriptions; the engine continues. If a rank's process exits, every `wait` and `submit` of the
    others raises PeerLostError; if a rank closes its engine, pending waits for it raise CommunicatorError. If a rank is
    stopped while the others need it, they raise TimeoutError, which names it, after PYCOLLECTIVE_TIMEOUT seconds.
    Waiting for an operation in a callback of another one, or in a signal handler that interrupts one, raises
    NestedCallError; submitting one does not.

    Attributes:
        comm: the engine's own communicator, a duplicate of the one passed. Arrays from its `empty` are reduced in
            place. Only the engine may call its collectives, except between construction and the first submit.
        rank, size: of the communicator.
        settings: those of rank 0.
    """

    def __init__(self, comm: Communicator, settings: Settings | None = None) -> None:
        """Collective.

        Args:
            comm: of the participating ranks. On several hosts, they negotiate by messages (see rounds.py).
            settings: by default from the environment; rank 0's are used.

        Raises:
            ValueError: an environment variable has an invalid value.
        """
        self.comm = comm.dup()
        self.rank, self.size = comm.rank, comm.size
        encoded = self.comm.backend.exchange(_SETTINGS.encode(settings or Settings.read()))
        self.settings = _SETTINGS.decode(encoded[0], 0)
        if self.settings.log_level:
            level = self.settings.log_level.upper().replace("TRACE", "DEBUG")
            logging.getLogger("pycollective").setLevel(level)
        self._stream: EngineStream | None = None
        self.core, self._exchange = self._make_core()
        self._tuner = autotune.set_up(self.comm, self.core, self.settings)
        self.comm.barrier()
        self._closed = False
        self._timeline: Timeline | None = None
        self._thread = threading.Thread(target=self.core.loop, name=f"pycollective engine {comm.name}", daemon=True)
        self._thread.start()
        if self._exchange is not None:
            self._exchange.start()
        _register(self)
        if self.settings.timeline not in ("", "DYNAMIC"):
            self.start_timeline(self.settings.timeline, self.settings.timeline_mark_cycles)

    def _make_core(self) -> tuple[_core.Engine, RoundExchange | None]:
        me = weakref.ref(self)  # a reference cycle through C++ would never be collected

        def run(*batch: Any) -> None:
            engine = me()
            if engine is not None:
                engine.run_batch(*batch)

        settings, team = self.settings, self.comm.backend.team
        stalls = settings.stall_warning_time, settings.stall_shutdown_time
        if team.spans_hosts:
            rounds = _core.Rounds(self.rank, self.comm.world_ranks, settings.fusion_threshold, settings.cycle_time)
            exchange = RoundExchange(self.comm, rounds, settings)
            return _core.Engine(team, rounds, None, 1, None, run, *stalls), exchange
        buffers = max(1, settings.fusion_buffers)
        buffer = self.comm.empty(buffers * max(4096, settings.fusion_buffer), np.uint8)
        slots = min(max(LEAST_SLOTS, settings.cache_capacity), MOST_SLOTS)
        segment = self.comm.backend.share(_core.Board.segment_bytes(self.size, slots))
        assert segment is not None
        board = _core.Board(segment, self.rank, self.size, slots)
        if self.rank == 0:
            board.prepare()
        self.comm.barrier()
        return _core.Engine(team, board, buffer, buffers, settings.topology or None, run, *stalls), None

    def __repr__(self) -> str:
        return f"<Engine of {self.comm.name!r}: rank {self.rank} of {self.size}>"

    # -- operations ------------------------------------------------------------------------------------------------

    def submit(self, items: Sequence[Item], grouped: bool = True, now: bool = False) -> list[_core.Work]:
        """Start operations. Does not block.

        Args:
            items: at least one. The arrays must not be changed until the work is done.
            grouped: several become ready together, and ranks submit the same groups. Otherwise this is the same as a
                call for each, but cheaper.
            now: the caller waits for them immediately: they are not held back for fusion, and no other thread is woken.

        Returns:
            their handles: `wait` returns the result, of an alltoall with the rows received from each rank.

        Raises:
            ValueError: an operation of that name is in progress, or arguments are invalid.
            TypeError: no array, or an element type that the operator does not support.
            PeerLostError, TimeoutError, CommunicatorError: the engine has failed or was closed.
        """
        try:
            for item in items:
                jobs.check(self.comm, item)
            works: list[Any] = self.core.submit(items, now, grouped)
        except (ValueError, TypeError) as error:
            self._refuse_all(items, error)
            raise
        return works

    def run(self, items: Sequence[Item]) -> list[Any]:
        """submit, then wait for all; returns their results. Faster than both, as this thread does the work itself."""
        try:
            for item in items:
                jobs.check(self.comm, item)
            return self.core.run(items)
        except (ValueError, TypeError) as error:
            self._refuse_all(items, error)
            raise

    def refuse(self, name: str, error: Exception) -> None:
        """Tell the other ranks why this one does not submit an operation, until it does; `submit` and `run` do so too.

        Stall reports, and the TimeoutError of ranks that wait for it, state the error.

        Args:
            name: of the operation, or what the names NAME.0, NAME.1, ... of a group's operations have in common.
        """
        text = " ".join(f"{type(error).__name__}: {error}".split())  # one line
        self.core.refuse(name, text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]}...")

    def _refuse_all(self, items: Sequence[Item], error: Exception) -> None:
        for item in items:
            if isinstance(item.name, str):
                self.refuse(item.name, error)

    def reduce_group(
        self,
        label: Callable[[], str],
        tensors: Sequence[Any],
        op: str,
        prescale: float,
        postscale: float,
        make: Callable[[Any], Any] | None,
        least: int = 0,
    ) -> list[Any] | None:
        """`run` of allreduces of torch tensors as a group, without items: the core reads and names all at once.

        Args:
            label: returns the names' common part; several are numbered LABEL.0, LABEL.1 and so on.
            make: makes the result of a tensor that has at least `least` bytes; None: tensors are reduced in place.

        Returns:
            the results; None, before `label` is called, unless all are plain tensors in CPU memory: use `run`.
        """
        results: list[Any] | None = self.core.reduce_group(label, tensors, op, prescale, postscale, make, least)
        return results

    def join(self) -> int:
        """Contribute zeros to the others' remaining operations until all ranks have joined.

        Allreduces get zeros from this rank, allgathers no rows; operations that need all ranks fail on all of them.

        Returns:
            the rank that joined last.

        Raises:
            CommunicatorError: a rank has closed its engine or exited without joining; names it.
            PeerLostError: a rank's process has died.
        """
        return int(self.run([Item("join", "pycollective.join")])[0])

    def run_batch(
        self, collective: str, device: bool, dtype: str, op: str, prescale: float, postscale: float, rows: Sequence[Row]
    ) -> None:
        """Called by the core for a batch that Python runs: allreduces in GPU memory, or a single other operation."""
        works = [work for work, *_ in rows]
        try:
            stream = self._on_gpu(works) if device else None
            terms = (op, prescale, postscale, stream)
            batch = [
                EngineJob(work and work.item, collective, dtype, shape, firsts, absent, place, *terms)
                for work, shape, firsts, absent, place in rows
            ]
            self._settle(works, jobs.run(self.comm, batch), stream)
        except Exception as error:
            if self.comm.backend.team.poisoned:
                raise
            for work in filter(None, works):
                work.error = error

    def _on_gpu(self, works: Sequence[Any]) -> EngineStream:
        """The stream for arrays in GPU memory, set to wait for those of `works`."""
        from pycollective.comm.cuda import runtime
        from pycollective.engine.device import EngineStream

        items: list[Item] = [work.item for work in works if work is not None]
        if self._stream is None:
            gpu = items[0].gpu if items else None
            device = runtime.load().current_device() if gpu is None else gpu.device
            buffer_bytes, topology = self.settings.gpu_fusion_buffer, self.settings.topology or None
            self._stream = EngineStream(self.comm, device, buffer_bytes, topology)
        self._stream.follow(items)
        return self._stream

    @staticmethod
    def _settle(works: Sequence[Any], results: Sequence[Any], stream: EngineStream | None) -> None:
        complete = stream.completion() if stream is not None else None
        for work, result in zip(works, results, strict=True):
            if work is not None:
                work.result = result
                if complete is not None:
                    work.on_wait = functools.partial(complete, work.item.x, result)

    # -- tuning and reports ----------------------------------------------------------------------------------------

    def tune(self, fusion_threshold: int, cycle_time: float) -> None:
        """Set both for all ranks, from now on; any rank may call it. Bytes and seconds."""
        self.core.tune(int(fusion_threshold), float(cycle_time))

    def traffic(self) -> tuple[int, int]:
        """Number of bytes that allreduces have reduced so far, and number of batches."""
        return self.core.traffic()

    def report(self) -> str:
        """The operations that wait for ranks, and these ranks, one line each."""
        return self.core.report()

    # -- the timeline ----------------------------------------------------------------------------------------------

    def start_timeline(self, path: str | Path, mark_cycles: bool = False) -> None:
        """Collective: record events from now on; see pycollective.engine.timeline.

        Args:
            path: of the file, which grows while the job runs and is completed by `stop_timeline` or `close`; rank 0's
                is used.
            mark_cycles: also mark the beginning of every batch.

        Raises:
            RuntimeError: a timeline is already being written.
            OSError: the file cannot be written.
        """
        if self._timeline is not None:
            raise RuntimeError(f"a timeline is already being written to {self._timeline.path}: stop_timeline() first")
        self._timeline = Timeline(path, self.comm, self.core, mark_cycles)

    @property
    def timeline_path(self) -> Path | None:
        """The path that this rank passed to start_timeline, absolute; None: no timeline is being written."""
        return None if self._timeline is None else self._timeline.wanted

    def stop_timeline(self) -> None:
        """Collective: end the timeline, if there is one. When rank 0 returns, the file is complete."""
        timeline, self._timeline = self._timeline, None
        if timeline is not None:
            timeline.finish()

    # -- closing ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close this rank's engine: operations in progress raise CommunicatorError here. May be called twice.

        Raises:
            NestedCallError: called by a callback of an operation.
        """
        if self._closed:
            return
        self.core.require_outside()
        self.stop_timeline()
        self._closed = True
        if self._tuner is not None:
            self._tuner.close()
        self.core.close()
        if self._exchange is not None:
            self._exchange.join()
        self._thread.join()
        self.comm.free()


def _register(engine: Engine) -> None:
    if not _live:
        atexit.register(_close_all)
        if signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL:
            _core.report_on_signal(signal.SIGUSR1)
    _live.add(engine)


def _close_all() -> None:
    """Called before the interpreter exits: the engines' threads must no longer use it."""
    for engine in list(_live):
        engine.close()
