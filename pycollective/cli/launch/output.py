"""The ranks' output where it goes through the launcher: whole lines, and parts of lines after a moment."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import IO, TextIO

from pycollective.cli.launch.culprit import LastException

_PATIENCE = 0.1
"""Seconds after which a part of a line, such as a question, is passed on."""
_COLOURS = (36, 33, 32, 35, 34, 31, 96, 93)
_LINES = re.compile(rb"[^\n\r]*(?:\r?\n|\r)")


@dataclass
class Screen:
    """A terminal or file to which several pipes are written.

    Attributes:
        begun: the pipe whose line is not complete.
    """

    begun: Pipe | None = None


@dataclass
class Pipe:
    """One output stream of one rank.

    Attributes:
        prefix: of each line; without one, what a rank writes is not changed.
        exception: reads the lines, too.
    """

    prefix: bytes
    source: IO[bytes]
    sink: IO[bytes]
    screen: Screen
    rest: bytes = b""
    exception: LastException | None = None
    _at_start: bool = True  # of its line, which a carriage return has begun again
    _since: float = field(default_factory=time.monotonic)

    def pump(self) -> bool:
        """Copy the available lines; False at the end of the stream."""
        data = os.read(self.source.fileno(), 65536)
        self.rest += data
        self._since = time.monotonic()
        end = max(self.rest.rfind(b"\n"), self.rest.rfind(b"\r")) + 1
        lines, self.rest = _LINES.findall(self.rest[:end]), self.rest[end:]
        if self.exception is not None:
            self.exception.read(lines)
        begun = self.rest or (self.screen.begun is self and not self._at_start)
        if not data and begun:
            lines, self.rest = [*lines, self.rest + (b"\n" if self.prefix else b"")], b""
        self.write(lines)
        return bool(data)

    def settle(self, now: float) -> None:
        """Copy the part of a line, if nothing has followed for a moment."""
        if self.rest and now - self._since >= _PATIENCE:
            part, self.rest = self.rest, b""
            self.write([part])

    def write(self, lines: Sequence[bytes]) -> None:
        """Write lines, each with its end, and last perhaps a part of one."""
        if not lines:
            return
        text = b""
        for line in lines:
            if self.screen.begun is not self:
                text += b"\n" if self.screen.begun is not None else b""
                self._at_start = True
            text += (self.prefix if self._at_start else b"") + line
            self._at_start = line.endswith((b"\n", b"\r"))
            self.screen.begun = None if line.endswith(b"\n") else self
        self.sink.write(text)
        self.sink.flush()


def prefix_of(label: str, rank: int, sink: TextIO) -> bytes:
    """The tag of a rank's lines, coloured on a terminal on which colour is not disabled (https://no-color.org)."""
    text = f"[{label}] "
    coloured = sink.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return (f"\033[{_COLOURS[rank % len(_COLOURS)]}m{text}\033[0m" if coloured else text).encode()
