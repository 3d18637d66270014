"""The trace file of a timeline, which rank 0 makes of the parts that all ranks write.

A part has one JSON object per line. On rank 0's host they are events in the format of the trace file. On other hosts
they are readings of the rank's clock against rank 0's ({"clock": [time, by how much it is ahead]}, nanoseconds; the
first line is one), and events whose times "ns" and "dur" are by the rank's own clock.

While the job runs the trace file has the parts of rank 0's host: a JSON array without its end, one event per line,
which viewers accept. A reader can parse it at any time up to the last complete line:
`json.loads(text[: text.rindex(",\\n")] + "]")`. At the end it is replaced by a complete one, with the parts of all.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import tempfile
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from pycollective.comm.private_file import create, open_private
from pycollective.engine import clocks
from pycollective.engine.clocks import Reading

if TYPE_CHECKING:
    from pycollective.comm.communicator import Communicator

PIECE = 64 << 20
"""Maximum size of a message in bytes."""


def part_of(path: Path, rank: int) -> Path:
    """The path of a rank's part on rank 0's host."""
    return path.with_name(f"{path.name}.rank{rank}")


def start(comm: Communicator, path: Path, chosen: bool) -> tuple[Path, Path, BinaryIO, Reading | None, int]:
    """Collective: agree on the file, which is rank 0's `path`, and create this rank's part where it can be.

    Args:
        chosen: the user has not given this path, but one like it.

    Returns:
        the paths of the trace file, on rank 0's host, and of this rank's part; that part, open; this rank's clock
        against rank 0's, or None on rank 0's host, which has the same clock; the start of the trace, by rank 0's clock.

    Raises:
        OSError: on all ranks, if one cannot write its part.
    """
    if comm.rank == 0:
        for rank in range(comm.size):  # left by a job that was killed
            with contextlib.suppress(OSError):
                part_of(path, rank).unlink()
    text, origin = json.loads(comm.backend.exchange(json.dumps([str(path), clocks.now()]).encode())[0])
    path, here = Path(text), comm.backend.group.nodes.node == comm.backend.group.nodes.of[0]
    places = [part_of(path, comm.rank)]
    if not here:
        places.append(Path(tempfile.gettempdir()) / places[0].name)
    refused, part = "", None
    for place in places:
        try:
            part = create(place)
            if comm.rank == 0:
                (create(path, 0o666) if chosen else path.open("wb")).close()
            refused = ""
            break
        except OSError as error:
            refused = str(error)
    errors = [text.decode() for text in comm.backend.exchange(refused.encode())]
    wrong = next((rank for rank, text in enumerate(errors) if text), None)
    if wrong is not None:
        if part is not None:
            part.close()
            place.unlink(missing_ok=True)
        raise OSError(f"rank {wrong} cannot write its part of the timeline: {errors[wrong]}")
    assert part is not None
    reading = clocks.compare(comm) if comm.backend.group.nodes.count > 1 else None
    return path, place, part, None if here else reading, origin


def collect(comm: Communicator, path: Path, part: Path) -> None:
    """Collective: transfer all ranks' parts to rank 0's host, each with a last reading of its clock."""
    reading = clocks.compare(comm)
    if comm.rank != 0:
        text = _text_of(part) + json.dumps({"clock": reading}) + "\n"
        part.unlink()  # before rank 0 writes it: the hosts may share the folder
        _send(comm, zlib.compress(text.encode(), 1))
        return
    failed: OSError | None = None
    for rank in range(1, comm.size):
        content = zlib.decompress(_receive(comm, rank))
        try:
            with create(part_of(path, rank)) as file:
                file.write(content)
        except OSError as error:  # the others still send theirs
            failed = error
    if failed is not None:
        raise failed


def open_part(part: Path) -> BinaryIO:
    """A part, to be read; OSError if it is missing, or another user's."""
    file = open_private(part)
    if file is None:
        raise FileNotFoundError(f"{part} has been removed")
    return file


def _text_of(part: Path) -> str:
    with open_part(part) as file:
        return file.read().decode()


def _send(comm: Communicator, content: bytes) -> None:
    comm.send(np.array([len(content)], np.int64), 0)
    data = np.frombuffer(content, np.uint8)
    for begin in range(0, len(data), PIECE):
        comm.send(data[begin : begin + PIECE], 0)


def _receive(comm: Communicator, rank: int) -> bytes:
    data = np.empty(int(comm.recv(np.empty(1, np.int64), rank)[0]), np.uint8)
    for begin in range(0, len(data), PIECE):
        comm.recv(data[begin : begin + PIECE], rank)
    return data.tobytes()


def read(part: Path, origin: int) -> Iterator[dict[str, Any]]:
    """A part's events, in rank 0's time from `origin`. An incomplete last line, left by a killed process, is
    omitted."""
    readings: list[Reading] = []
    events: list[dict[str, Any]] = []
    for line in _text_of(part).splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if "clock" in row:
            readings.append(tuple(row["clock"]))
        else:
            events.append(row)
    for event in events:
        if "ns" in event:
            begin = clocks.of_rank_0(readings, event["ns"])
            if "dur" in event:
                event["dur"] = clocks.of_rank_0(readings, event["ns"] + event["dur"]) - begin
            event["ns"] = begin
        yield timed(event, origin)


def timed(event: dict[str, Any], origin: int) -> dict[str, Any]:
    """The event with its times in microseconds from `origin`; an earlier beginning (of an operation submitted before,
    or by another host's clock) is moved there."""
    if "ns" in event:
        begin = event.pop("ns") - origin
        event["ts"] = max(begin, 0) / 1000
        if "dur" in event:
            event["dur"] = max(event["dur"] + min(begin, 0), 0) / 1000
    return event


def meta(kind: str, rank: int, row: int, **args: Any) -> dict[str, Any]:
    """An event that describes a rank or one of its rows."""
    return {"ph": "M", "name": kind, "pid": rank, "tid": row, "args": args}


class TraceFile:
    """The file while it grows."""

    def __init__(self, path: Path, local: Sequence[Path], origin: int) -> None:
        """Overwrite it. `local`: the parts of this host's ranks. `origin`: the trace's start by this rank's clock."""
        self._path, self._origin = path, origin
        self._file = path.open("wb", buffering=0)
        self._replaceable = stat.S_ISREG(os.fstat(self._file.fileno()).st_mode)  # /dev/null and pipes are not
        self._parts = [_Growing(part) for part in local]
        since_epoch = (time.time_ns() - clocks.now() + origin) // 1000
        # Horovod's name for it.
        self._start = meta("trace_start", 0, 0, start_time_since_epoch_in_micros=since_epoch)
        self._file.write(f"[\n{json.dumps(self._start)},\n".encode())

    def grow(self) -> None:
        """Append the new content of the parts unparsed: they have the right format."""
        for part in self._parts:
            lines = part.more()
            if lines:
                self._file.write(lines.replace(b"\n", b",\n"))

    def finish(self, every: Sequence[Path]) -> None:
        """Replace the file by one made from all ranks' existing parts, and remove these."""
        found = [part for part in every if part.exists()]
        events = [event for part in found for event in read(part, self._origin)]
        if self._replaceable:
            self._replace(events)
        self._file.close()
        for growing in self._parts:
            growing.close()
        for part in found:
            part.unlink()

    def _replace(self, events: list[dict[str, Any]]) -> None:
        complete = self._path.with_name(f"{self._path.name}.complete")
        with create(complete, 0o666) as file:
            lines = ",\n".join(map(json.dumps, [self._start, *_paired(events)]))
            file.write(f'{{"displayTimeUnit": "ns", "traceEvents": [\n{lines}\n]}}\n'.encode())
        os.replace(complete, self._path)


class _Growing:
    """A part that is still being written."""

    def __init__(self, part: Path) -> None:
        self._file = open_part(part)
        self._rest = b""

    def more(self) -> bytes:
        """The complete lines since the last call."""
        lines, end, self._rest = (self._rest + self._file.read()).rpartition(b"\n")
        return lines + end

    def close(self) -> None:
        self._file.close()


def _paired(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The events without arrows that lack an end, whose rank was not traced at the time."""
    begun = {event["id"] for event in events if event["ph"] == "s"}
    ended = {event["id"] for event in events if event["ph"] == "f"}
    both = begun & ended
    return [event for event in events if event["ph"] not in "sf" or event["id"] in both]
