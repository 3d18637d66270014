"""Schedules that one rank of a host compiles for all.

The first rank that needs a schedule compiles it and puts the tables of all ranks into a segment of shared memory, whose
token is in the communicator's directory (csrc/executor/table_directory.h). If it fails, every rank compiles for itself.
If its process ends, another rank compiles instead, and the call then names the lost rank.
"""

from __future__ import annotations

import itertools
import struct
from array import array
from typing import Any

from pycollective import _core
from pycollective.comm.arguments.function_digest import digest
from pycollective.comm.planner import LoadedSchedule, ScheduleKey, compiled, is_ours, program_digest, schedule_for

_HEAD = struct.Struct("=QQ")
"""At the start of a segment: the digest of the schedule's key, and that of its program. Then the ends of the ranks'
tables, in bytes from the first one, as 64-bit numbers; then the tables."""


class HostTables:
    """The schedules of one communicator, of `size` ranks."""

    def __init__(self, directory: _core.TableDirectory, size: int) -> None:
        self._directory, self._size = directory, size
        self._unread: dict[int, _core.Segment] = {}  # made here, by number; some ranks have not read them yet

    def load(self, key: ScheduleKey, rank: int) -> LoadedSchedule:
        """See Planner."""
        number = key_digest(key)
        self._drop_read()
        found = self._directory.acquire(number)
        if found is None:
            return compiled(key, rank)
        token, nbytes = found
        if not token:
            self._share(number, key)
            return compiled(key, rank)
        try:
            loaded = read_table(token, nbytes, number, key.size, rank)
        except (OSError, ValueError):  # the rank that made them has ended, or has dropped them
            return compiled(key, rank)
        self._directory.note_taken(number)
        return loaded

    def _share(self, number: int, key: ScheduleKey) -> None:
        """Compile for all ranks."""
        try:
            segment = write_tables(number, key)
            self._directory.publish(number, segment.token(), segment.bytes)
            self._unread[number] = segment
        except OSError:  # no memory that can be shared
            self._directory.fail(number)
        except BaseException:  # an invalid program, or an interrupt
            self._directory.fail(number)
            raise

    def _drop_read(self) -> None:
        for number in list(self._unread):
            if self._directory.taken(number) >= self._size - 1:
                self._unread.pop(number, None)


def key_digest(key: ScheduleKey) -> int:
    """64-bit digest of a schedule's key, not 0: equal on ranks that compile the same program.

    Raises:
        ProgramError: the program of a user-defined topology breaks a rule of the language.
    """
    from pycollective.schedule.compiler.schedule import TABLE_VERSION
    from pycollective.schedule.language import registry

    label = registry.label(key.topology)
    parts = [repr((TABLE_VERSION, label, key.collective, key.size, key.root, key.placement.name, key.small))]
    if not is_ours(key.topology):  # it may differ between ranks
        from pycollective.schedule.compiler.compiler import trace

        program = trace(key.topology, key.collective, key.size, key.root, key.small)
        parts.append(str(program.chunk_count))
        parts += [repr((s.chunk, s.destinations, s.sources, s.at)) for s in program.statements]
    return digest(part.encode() for part in parts) or 1


def write_tables(number: int, key: ScheduleKey) -> _core.Segment:
    """Compile a schedule, into a new segment; OSError if memory cannot be shared."""
    schedule = schedule_for(key)
    tables = [schedule.table(rank).tobytes() for rank in range(schedule.size)]
    ends = array("Q", itertools.accumulate(map(len, tables)))
    content = b"".join((_HEAD.pack(number, program_digest(key)), ends.tobytes(), *tables))
    segment = _core.Segment.create("memfd", len(content))  # has no name that could be left behind
    segment.reserve(0, len(content))
    view(segment)[:] = content
    return segment


def read_table(token: str, nbytes: int, number: int, size: int, rank: int) -> LoadedSchedule:
    """A rank's part of the schedule in another rank's segment.

    Raises:
        OSError, ValueError: the token does not name, or no longer names, the tables of this schedule.
    """
    content = view(_core.Segment.attach(token, nbytes))
    first = _HEAD.size + 8 * size
    if len(content) < first or _HEAD.unpack_from(content)[0] != number:
        raise ValueError("the tables of another schedule")
    ends = array("Q", [0])
    ends.frombytes(content[_HEAD.size : first])
    schedule = _core.Schedule(array("i", content[first + ends[rank] : first + ends[rank + 1]].tobytes()))
    if (schedule.size, schedule.rank) != (size, rank):
        raise ValueError("the table of another rank")
    return LoadedSchedule(schedule, _HEAD.unpack_from(content)[1])


def view(segment: Any) -> memoryview:
    """The bytes of a segment; Any: its type has the buffer protocol, which its stub cannot express."""
    return memoryview(segment)
