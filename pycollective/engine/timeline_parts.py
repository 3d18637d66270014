"""The parts of a timeline: what each rank writes until they are merged, and how they come together from several hosts.

A part has one JSON object a line. On rank 0's host they are the events as the trace file has them. On other hosts they
are readings of the rank's clock against rank 0's ({"clock": [when, by how much it is ahead]}, nanoseconds; the first
line is one), and events, whose times "ns" and "dur" are by the rank's own clock.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pycollective.engine import clocks
from pycollective.engine.clocks import Reading

if TYPE_CHECKING:
    from pycollective.comm.communicator import Communicator

PIECE = 64 << 20
"""Bytes of a message at most."""


def part_of(path: Path, rank: int) -> Path:
    """Where a rank writes on rank 0's host."""
    return path.with_name(f"{path.name}.rank{rank}")


@dataclass(frozen=True)
class Place:
    """What `start` returns.

    Attributes:
        path: of the trace file, on rank 0's host.
        part: of this rank's part.
        reading: this rank's clock against rank 0's; None on rank 0's host, where there is one clock.
        origin: when the trace begins, by rank 0's clock.
    """

    path: Path
    part: Path
    reading: Reading | None
    origin: int


def start(comm: Communicator, path: Path) -> Place:
    """Collective: agree on the file, which is rank 0's `path`, and find out where this rank can write its part.

    Raises:
        OSError: on all ranks, if one finds no place.
    """
    if comm.rank == 0:
        for rank in range(comm.size):  # of a job that was killed
            with contextlib.suppress(OSError):
                part_of(path, rank).unlink()
    text, origin = json.loads(comm.backend.exchange(json.dumps([str(path), clocks.now()]).encode())[0])
    path, here = Path(text), comm.backend.group.nodes.node == comm.backend.group.nodes.of[0]
    places = [part_of(path, comm.rank)]
    if not here:
        places.append(Path(tempfile.gettempdir()) / places[0].name)
    refused = ""
    for place in places:
        try:
            place.open("w").close()
            if comm.rank == 0:
                path.open("w").close()
        except OSError as error:
            refused = str(error)
        else:
            refused = ""
            break
    said = [text.decode() for text in comm.backend.exchange(refused.encode())]
    wrong = next((rank for rank, text in enumerate(said) if text), None)
    if wrong is not None:
        with contextlib.suppress(OSError):
            place.unlink()
        raise OSError(f"rank {wrong} cannot write its part of the timeline: {said[wrong]}")
    reading = clocks.compare(comm) if comm.backend.group.nodes.count > 1 else None
    return Place(path, place, None if here else reading, origin)


def collect(comm: Communicator, path: Path, part: Path) -> None:
    """Collective: all ranks' parts are brought to rank 0's host, each with a last reading of its clock."""
    reading = clocks.compare(comm)
    if comm.rank != 0:
        text = part.read_text() + json.dumps({"clock": reading}) + "\n"
        part.unlink()  # before rank 0 writes it: the hosts may share the folder
        _send(comm, zlib.compress(text.encode(), 1))
        return
    failed: OSError | None = None
    for rank in range(1, comm.size):
        content = zlib.decompress(_receive(comm, rank))
        try:
            part_of(path, rank).write_bytes(content)
        except OSError as error:  # the others send theirs all the same
            failed = error
    if failed is not None:
        raise failed


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
    """A part's events, in rank 0's time from `origin`. A last line that was cut short when its process was killed is
    left out."""
    readings: list[Reading] = []
    events: list[dict[str, Any]] = []
    for line in part.read_text().splitlines():
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
    """The event with its times in microseconds from `origin`; what began before (an operation that was submitted
    earlier, or by another host's clock) is shown from there on."""
    if "ns" in event:
        begin = event.pop("ns") - origin
        event["ts"] = max(begin, 0) / 1000
        if "dur" in event:
            event["dur"] = max(event["dur"] + min(begin, 0), 0) / 1000
    return event


def meta(kind: str, rank: int, row: int, **args: Any) -> dict[str, Any]:
    """An event that describes a rank or one of its rows."""
    return {"ph": "M", "name": kind, "pid": rank, "tid": row, "args": args}
