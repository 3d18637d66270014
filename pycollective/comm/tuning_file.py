"""The file of PYCOLLECTIVE_TUNING: JSON that `pycollective tune` and the engine's autotuning write."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Annotated

import msgspec

from pycollective import settings
from pycollective.comm.host.cores import cpu_model, usable_cores
from pycollective.comm.private_file import open_private, write_private
from pycollective.errors import TopologyError
from pycollective.schedule.collectives import COLLECTIVES
from pycollective.schedule.language import registry

log = logging.getLogger("pycollective.tuning")

SCHEMA = "pycollective-tuning/1"
MOST_BYTES = 4 << 20

_Bytes = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The choice for a range of sizes."""

    collective: str
    above: _Bytes
    """Bytes; calls of so many do not belong to the range."""
    up_to: _Bytes
    """Bytes; calls of so many do."""
    topology: str
    small: bool
    tile: Annotated[int, msgspec.Meta(ge=0, le=1 << 40)] = 0
    speedup: float = 1.0
    """How many times faster than the planner's rules it was when it was measured."""


class Fusion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the engine's autotuning has found."""

    threshold: _Bytes
    """Bytes."""
    cycle_time: Annotated[float, msgspec.Meta(ge=0)]
    """Seconds."""


class World(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The results for ranks on hosts."""

    rows: tuple[Row, ...] = ()
    fusion: Fusion | None = None

    def row(self, collective: str, nbytes: int) -> Row | None:
        """What was measured to be faster than the planner's rules; None: nothing."""
        rows = (row for row in self.rows if row.collective == collective and row.above < nbytes <= row.up_to)
        return next(rows, None)


class TuningFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="schema", tag=SCHEMA):
    """The content of the file."""

    machine: str
    worlds: dict[str, World] = {}
    """By `layout`."""

    @staticmethod
    def decode(text: bytes) -> TuningFile:
        """The content of a file; msgspec.MsgspecError if it is none."""
        return msgspec.json.decode(text, type=TuningFile)

    def world(self, hosts: Sequence[int]) -> World | None:
        """The results for these ranks, each on the host of that number; None: they were not measured."""
        return self.worlds.get(layout(hosts))


def this_machine() -> str:
    """What times depend on: the processor, and how many of its cores this process may use."""
    return f"{cpu_model()}, {len(usable_cores())} cores"


def layout(hosts: Sequence[int]) -> str:
    """The ranks of each host, as in 4+4; empty if those of a host are not consecutive."""
    counts = [str(len(list(ranks))) for _, ranks in groupby(hosts)]
    return "+".join(counts) if len(counts) == len(set(hosts)) else ""


def read(path: str) -> TuningFile | None:
    """A file of this user; None if there is none.

    Raises:
        OSError: it cannot be read, or another user may have written it.
        ValueError: it is truncated, of another version, or names what does not exist.
    """
    file = open_private(Path(path))
    if file is None:
        return None
    with file:
        text = file.read(MOST_BYTES + 1)
    if len(text) > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES} bytes")
    try:
        found = TuningFile.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from None
    for name, world in found.worlds.items():
        for row in world.rows:
            _check(row, name)
    return found


def _check(row: Row, layout_: str) -> None:
    """Raise ValueError for what cannot be done: calls would fail, in the middle of a job."""
    info = registry.info(row.topology)
    if row.collective not in COLLECTIVES or row.collective not in info.collectives:
        raise TopologyError(f"topology {row.topology!r} has no {row.collective!r:.80}")
    registry.check_ranks(registry.get(row.topology), sum(map(int, layout_.split("+"))))


def read_for_job(path: str) -> bytes:
    """The file, encoded; empty, with a warning, if it does not apply to this machine or cannot be read."""
    reason = ""
    try:
        found = read(path)
        if found is None:
            reason = "" if settings.read("HOROVOD_AUTOTUNE") else "there is no such file"
        elif found.machine != this_machine():
            reason = f"it was measured on another machine: {found.machine}; this is {this_machine()}"
        else:
            return msgspec.json.encode(found)
    except (OSError, ValueError) as error:
        reason = str(error)
    if reason:
        log.warning("PYCOLLECTIVE_TUNING: %s is ignored: %s; `pycollective tune` writes one", path, reason)
    return b""


def update(path: str, name: str, rows: tuple[Row, ...] | None = None, fusion: Fusion | None = None) -> TuningFile:
    """Replace the results of a world, by `layout`; what is None stays, and so do those of other worlds.

    A file of another machine, or one that cannot be read, is replaced as a whole.

    Raises:
        OSError: it cannot be written.
    """
    found: TuningFile | None = None
    try:
        found = read(path)
    except (OSError, ValueError) as error:
        log.warning("%s is replaced: %s", path, error)
    if found is None or found.machine != this_machine():
        found = TuningFile(this_machine())
    world = found.worlds.get(name, World())
    made = World(world.rows if rows is None else rows, fusion or world.fusion)
    made_file = TuningFile(found.machine, {**found.worlds, name: made})
    text = msgspec.json.format(msgspec.json.encode(made_file), indent=1) + b"\n"
    write_private(Path(path), lambda file: file.write(text))
    return made_file
