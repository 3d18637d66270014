"""The timeline: the activity of all ranks' engines, as one Chrome trace file (Perfetto, chrome://tracing).

Each rank is a process of the trace. One of its rows shows the batches as they pass through the fusion buffer, one the
steps of the schedules with an arrow from each step to those that waited for it, and each operation has its own row:
NEGOTIATE_* from its rank's submission to the last one's, QUEUE until its batch begins, then the operation itself.
Between hosts there are no steps: the exchange is one slice of the batch. Names are those of
Horovod's Timeline, https://horovod.readthedocs.io/en/stable/timeline.html; the format is
https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU ("Trace Event Format").
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import re
import threading
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from pycollective.engine import trace_file
from pycollective.engine.operation import Item
from pycollective.engine.trace_file import TraceFile, meta, part_of
from pycollective.errors import Error

if TYPE_CHECKING:
    from pycollective import _core
    from pycollective.comm.communicator import Communicator

FLUSH_SECONDS = 0.025
"""Seconds between polls for new events; Horovod's tests read the file 0.1 s after an operation."""
_paths: set[Path] = set()
"""Files to which timelines of this process contribute."""
BATCHES, STEPS, FIRST_OPERATION = 0, 1, 2
"""Rows of a rank."""
_PHASES = {
    "pack": "MEMCPY_IN_FUSION_BUFFER",
    "unpack": "MEMCPY_OUT_FUSION_BUFFER",
    "reduce": "REDUCE",
    "between_hosts": "ALLREDUCE",
    "queue": "QUEUE",
}


class Timeline:
    """One rank's part of a timeline: written continuously, so that it survives if the job is killed.

    Rank 0 assembles the file from the parts; see trace_file.py.

    Attributes:
        path: of the file.
        wanted: the path passed on this rank, absolute.
    """

    def __init__(self, path: str | Path, comm: Communicator, core: _core.Engine, mark_cycles: bool = False) -> None:
        """Collective: start to write.

        Args:
            path: of the file; rank 0's is used. If another timeline of this process writes it, the engine's name is
                added. This rank's part is in the same folder until the end (in the folder of temporary files if its
                host has no such folder).
            comm, core: of the engine whose operations are recorded.
            mark_cycles: record an instant event for every batch.

        Raises:
            OSError: on all ranks, if one cannot write its part.
        """
        self._comm, self._core = comm, core
        self._mark_cycles = mark_cycles
        self._rows = {"": BATCHES}  # of each operation; events of a batch have no name
        self._across = comm.backend.group.nodes.count > 1
        self.wanted = Path(path).absolute()
        free = _unused(self.wanted, comm.name)
        chosen = free != self.wanted
        starts = Item("call", "pycollective.timeline.start", run=lambda comm: trace_file.start(comm, free, chosen))
        self.path, self._part, file, reading, self._origin = core.run([starts])[0]
        _paths.add(self.path)
        self._file: IO[str] = io.TextIOWrapper(file, encoding="utf-8")
        # Other hosts' times are converted at the end, when the drift of their clocks is known.
        self._convert = reading is None
        if reading is not None:
            self._write([{"clock": reading}])
        self._write(_head(comm.rank, not self._across))
        self._trace_file: TraceFile | None = None
        if comm.rank == 0:
            nodes = comm.backend.group.nodes
            local = [part_of(self.path, rank) for rank in range(comm.size) if nodes.of[rank] == nodes.of[0]]
            self._trace_file = TraceFile(self.path, local, self._origin)
        self._stop = threading.Event()
        self._core.take_events()  # left over from an earlier timeline
        self._core.trace(True)
        self._thread = threading.Thread(target=self._loop, name="pycollective timeline", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Collective: stop, and complete the file. When rank 0 returns, the file contains all ranks."""
        self._core.trace(False)
        self._stop.set()
        self._thread.join()
        with self._warning():
            self._drain()
            self._file.close()
        _paths.discard(self.path)
        last = Item("barrier", "pycollective.timeline")  # all parts are written
        if self._across:
            last = Item("call", last.name, run=lambda comm: trace_file.collect(comm, self.path, self._part))
        try:
            self._core.run([last])
        except Error as error:
            warnings.warn(f"the timeline may lack ranks: {error}", RuntimeWarning, stacklevel=3)
        if self._trace_file is not None:
            with self._warning():
                self._trace_file.finish([part_of(self.path, rank) for rank in range(self._comm.size)])

    @contextlib.contextmanager
    def _warning(self) -> Iterator[None]:
        """Warn if the file cannot be written; that must not prevent the engine from closing."""
        try:
            yield
        except OSError as error:
            warnings.warn(f"the timeline {self.path} is incomplete: {error}", RuntimeWarning, stacklevel=4)

    def _loop(self) -> None:
        with self._warning():
            while not self._stop.wait(FLUSH_SECONDS):
                self._drain()
                if self._trace_file is not None:
                    self._trace_file.grow()

    def _drain(self) -> None:
        phases, steps = self._core.take_events()
        comm, rank = self._comm.name, self._comm.rank
        shown = [self._phase(*row) for row in phases] + [_step(comm, rank, *row) for row in steps]
        self._write(itertools.chain.from_iterable(shown))

    def _phase(self, phase: str, collective: str, name: str, begin: int, end: int) -> Iterator[dict[str, Any]]:
        if phase == "cycle":
            if self._mark_cycles:
                yield {"ph": "i", "s": "p", "name": "CYCLE_START", "pid": self._comm.rank, "tid": BATCHES, "ns": begin}
            return
        label = _PHASES.get(phase) or ("NEGOTIATE_" if phase == "negotiate" else "") + collective.upper()
        row = self._rows.get(name)
        if row is None:
            row = self._rows[name] = FIRST_OPERATION + len(self._rows) - 1
            yield from _row(self._comm.rank, row, name)
        yield _slice(label, self._comm.rank, row, begin, end, {"operation": name} if name else {})

    def _write(self, events: Iterable[dict[str, Any]]) -> None:
        """Write complete lines only: readers find no partial ones, unless this process is killed meanwhile."""
        if self._convert:
            events = (trace_file.timed(event, self._origin) for event in events)
        text = "".join(json.dumps(event) + "\n" for event in events)
        if text:
            self._file.write(text)
            self._file.flush()


def _unused(path: Path, name: str) -> Path:
    """The path, or if that file is being written, another one with `name` in it."""
    if path not in _paths:
        return path
    return path.with_name(f"{path.stem}.{re.sub('[^A-Za-z0-9_]+', '-', name)}{path.suffix}")


def _step(
    comm: str, rank: int, begin: int, end: int, chunk: int, tile: int, sources: list[int], targets: list[int],
    value: int, consumers: list[int], waits: list[tuple[int, int]],
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """A step, and its ends of the arrows between steps."""
    peers = sorted({*sources, *targets} - {rank})
    label = f"reduce chunk {chunk}" if len(sources) > 1 else f"copy chunk {chunk}"
    if peers:
        label += f" with {', '.join(map(str, peers))}"
    details = {"chunk": chunk, "tile": tile, "reads": sources, "writes": targets, "peers": peers}
    yield _slice(label, rank, STEPS, begin, end, details)
    arrow = {"cat": "wait", "name": "wait", "pid": rank, "tid": STEPS}
    for consumer in consumers:
        yield {**arrow, "ph": "s", "id": f"{comm}/{rank}>{consumer}/{value}", "ns": begin}
    for peer, counter in waits:
        yield {**arrow, "ph": "f", "bp": "e", "id": f"{comm}/{peer}>{rank}/{counter}", "ns": begin}


def _slice(name: str, rank: int, row: int, begin: int, end: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "X", "name": name, "pid": rank, "tid": row, "ns": begin, "dur": end - begin, "args": args}


def _head(rank: int, steps: bool) -> Iterator[dict[str, Any]]:
    yield meta("process_name", rank, 0, name=f"rank {rank}")
    yield meta("process_sort_index", rank, 0, sort_index=rank)
    yield from _row(rank, BATCHES, "fusion buffer")
    if steps:
        yield from _row(rank, STEPS, "steps")


def _row(rank: int, row: int, name: str) -> Iterator[dict[str, Any]]:
    yield meta("thread_name", rank, row, name=name)
    yield meta("thread_sort_index", rank, row, sort_index=row)
