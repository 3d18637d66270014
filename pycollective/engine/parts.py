"""The parts of a timeline: what each rank writes until they are merged, and how they come together from several hosts.

A part has one JSON object a line: readings of the rank's clock against rank 0's ({"clock": [when, by how much it is
ahead]}, nanoseconds; the first line is one), and events, whose times "ns" and "dur" are by the rank's own clock.
"""

from __future__ import annotations

import json
import tempfile
import zlib
from collections.abc import Iterator
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


def start(comm: Communicator, path: Path) -> tuple[Path, Reading]:
    """Collective: where this rank can write its part, and its clock against rank 0's.

    Raises:
        OSError: on all ranks, if one finds no place.
    """
    places = [part_of(path, comm.rank)]
    if comm._nodes.node != comm._nodes.of[0]:
        places.append(Path(tempfile.gettempdir()) / places[0].name)
    refused = ""
    for place in places:
        try:
            place.open("w").close()
        except OSError as error:
            refused = str(error)
        else:
            refused = ""
            break
    said = [text.decode() for text in comm._exchange(refused.encode())]
    wrong = next((rank for rank, text in enumerate(said) if text), None)
    if wrong is not None:
        place.unlink(missing_ok=True)
        raise OSError(f"rank {wrong} cannot write its part of the timeline: {said[wrong]}")
    return place, clocks.compare(comm)


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


def read(part: Path) -> Iterator[dict[str, Any]]:
    """A part's events, in rank 0's time. A last line that was cut short when its process was killed is left out."""
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
        yield event
