"""The timeline: what the engines of all ranks did when, as one Chrome trace file (Perfetto, chrome://tracing).

Each rank is a process of the trace. One of its rows shows the batches as they pass through the fusion buffer, one the
steps of the schedules with an arrow from each step to those that waited for it, and each operation has a row of its
own: NEGOTIATE_* from its rank's submission to the last one's, QUEUE until its batch begins, then the operation
itself. Between hosts there are no steps to be seen: the exchange is one slice of the batch. Names are those of
Horovod's Timeline, https://horovod.readthedocs.io/en/stable/timeline.html; the format is
https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU ("Trace Event Format").
"""

from __future__ import annotations

import itertools
import json
import threading
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from pycollective.engine import clocks, parts
from pycollective.engine.item import Item
from pycollective.engine.parts import part_of
from pycollective.errors import Error

if TYPE_CHECKING:
    from pycollective.engine.engine import Engine

FLUSH_SECONDS = 0.5
BATCHES, STEPS, FIRST_OPERATION = 0, 1, 2
"""Rows of a rank."""
_PHASES = {
    "pack": "MEMCPY_IN_FUSION_BUFFER",
    "unpack": "MEMCPY_OUT_FUSION_BUFFER",
    "reduce": "REDUCE",
    "mpi_allreduce": "MPI_ALLREDUCE",
    "queue": "QUEUE",
}


class Timeline:
    """One rank's part of a timeline: written as it comes, so that it outlives a job that is killed.

    `merge` joins the parts of all ranks into the file itself.
    """

    def __init__(self, path: str | Path, engine: Engine, mark_cycles: bool = False) -> None:
        """Start to write. Collective where the ranks are on several hosts.

        Args:
            path: of the merged file; this rank's part lies beside it until then (in the folder of temporary files,
                where its host has no such folder).
            engine: whose operations are shown.
            mark_cycles: an instant event for every batch.

        Raises:
            OSError: the part cannot be written.
        """
        self.path = Path(path)
        self._engine = engine
        self._core = engine._core
        self._mark_cycles = mark_cycles
        self._rows: dict[str, int] = {}
        self._numbers = itertools.count(FIRST_OPERATION)
        self._across = engine.comm._nodes.count > 1
        if self._across:
            starts = Item("call", "pycollective.timeline.start", run=lambda comm: parts.start(comm, self.path))
            self._part, reading = engine.run([starts])[0]
        else:
            self._part, reading = part_of(self.path, engine.rank), (clocks.now(), 0)
        self._file: IO[str] = self._part.open("w")
        self._write([{"clock": reading}, *_head(engine.rank, not self._across)])
        self._stop = threading.Event()
        self._core.take_events()  # left over from an earlier timeline
        self._core.trace(True)
        self._thread = threading.Thread(target=self._loop, name="pycollective timeline", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop, with everything written. May be called twice."""
        if self._stop.is_set():
            return
        self._core.trace(False)
        self._stop.set()
        self._thread.join()
        self._drain()
        self._file.close()

    def finish(self) -> None:
        """Collective: close, and merge. When rank 0 returns, the file of all ranks is there."""
        self.close()
        through = Item("barrier", "pycollective.timeline")  # all parts are written
        if self._across:
            through = Item("call", through.name, run=lambda comm: parts.collect(comm, self.path, self._part))
        try:
            self._engine.run([through])
        except Error as error:
            warnings.warn(f"the timeline may lack ranks: {error}", RuntimeWarning, stacklevel=3)
        if self._engine.rank == 0:
            merge(self.path, self._engine.size)

    def _loop(self) -> None:
        while not self._stop.wait(FLUSH_SECONDS):
            self._drain()

    def _drain(self) -> None:
        phases, steps = self._core.take_events()
        comm, rank = self._engine.comm.name, self._engine.rank
        self._write(
            itertools.chain(
                *(self._phase(*row) for row in phases),
                *(_step(comm, rank, *row) for row in steps),
            )
        )

    def _phase(self, phase: str, collective: str, name: str, begin: int, end: int) -> Iterator[dict[str, Any]]:
        if phase == "cycle":
            if self._mark_cycles:
                yield {
                    "ph": "i",
                    "s": "p",
                    "name": "CYCLE_START",
                    "pid": self._engine.rank,
                    "tid": BATCHES,
                    "ns": begin,
                }
            return
        label = _PHASES.get(phase) or ("NEGOTIATE_" if phase == "negotiate" else "") + collective.upper()
        row = self._rows.get(name, BATCHES) if name else BATCHES
        if name and row == BATCHES:
            row = self._rows[name] = next(self._numbers)
            yield _meta("thread_name", self._engine.rank, row, name=name)
            yield _meta("thread_sort_index", self._engine.rank, row, sort_index=row)
        yield _slice(label, self._engine.rank, row, begin, end, {"operation": name} if name else {})

    def _write(self, events: Iterable[dict[str, Any]]) -> None:
        for event in events:
            self._file.write(json.dumps(event) + "\n")
        self._file.flush()


def merge(path: str | Path, size: int) -> int:
    """Join the parts of `size` ranks into one trace file, in rank 0's time, and remove them.

    Returns:
        how many parts there were.
    """
    path = Path(path)
    found = [part for rank in range(size) if (part := part_of(path, rank)).exists()]
    events = [event for part in found for event in parts.read(part)]
    start = min((event["ns"] for event in events if "ns" in event), default=0)
    with path.open("w") as file:
        json.dump({"displayTimeUnit": "ns", "traceEvents": list(_timed(_paired(events), start))}, file)
    for part in found:
        part.unlink()
    return len(found)


def _timed(events: Iterable[dict[str, Any]], start: int) -> Iterator[dict[str, Any]]:
    """Times in microseconds from the start of the trace."""
    for event in events:
        if "ns" in event:
            event["ts"] = (event.pop("ns") - start) / 1000
        if "dur" in event:
            event["dur"] /= 1000
        yield event


def _paired(events: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Without arrows that lack an end: its rank was not traced at the time."""
    begun = {event["id"] for event in events if event["ph"] == "s"}
    ended = {event["id"] for event in events if event["ph"] == "f"}
    both = begun & ended
    return (event for event in events if event["ph"] not in "sf" or event["id"] in both)


def _step(
    comm: str, rank: int, begin: int, end: int, chunk: int, tile: int, sources: list[int], targets: list[int],
    value: int, consumers: list[int], waits: list[tuple[int, int]],
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """A step, and its ends of the arrows between steps."""
    peers = sorted({*sources, *targets} - {rank})
    label = f"{'reduce' if len(sources) > 1 else 'copy'} chunk {chunk}"
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
    yield _meta("process_name", rank, 0, name=f"rank {rank}")
    yield _meta("process_sort_index", rank, 0, sort_index=rank)
    for row, name in ((BATCHES, "fusion buffer"), (STEPS, "steps"))[: 2 if steps else 1]:
        yield _meta("thread_name", rank, row, name=name)
        yield _meta("thread_sort_index", rank, row, sort_index=row)


def _meta(kind: str, rank: int, row: int, **args: Any) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": rank, "tid": row, "args": args}
