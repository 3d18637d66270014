"""The trace file of a timeline, which rank 0 writes: from its host's parts while the job runs, from all at the end.

While the job runs it is a JSON array without its end, one event per line, which viewers accept. A reader can parse it
at any time up to the last complete line: `json.loads(text[: text.rindex(",\\n")] + "]")`. At the end it is replaced
by a complete one.
"""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pycollective.comm.private_file import create
from pycollective.engine import clocks, timeline_parts


class TraceFile:
    """The file while it grows."""

    def __init__(self, path: Path, local: Sequence[Path], origin: int) -> None:
        """
        Args:
            path: of the file; it is overwritten.
            local: the parts of the ranks on this host.
            origin: the start of the trace, by this rank's clock.

        Raises:
            OSError: it cannot be written.
        """
        self._path, self._origin = path, origin
        self._file = path.open("wb", buffering=0)
        self._replaceable = stat.S_ISREG(os.fstat(self._file.fileno()).st_mode)  # /dev/null and pipes are not
        self._parts = [_Growing(part) for part in local]
        since_epoch = (time.time_ns() - clocks.now() + origin) // 1000
        # Horovod's name for it.
        self._start = timeline_parts.meta("trace_start", 0, 0, start_time_since_epoch_in_micros=since_epoch)
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
        events = [event for part in found for event in timeline_parts.read(part, self._origin)]
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
        self._file = timeline_parts.open_part(part)
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
