"""Which rank ended a job: not the first that an error of another one brought down. Standard library only."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass

_PREFIX = rb"(\[rank\d+\]: )?"  # torch.distributed begins each line with it
_TRACEBACK = re.compile(_PREFIX + rb'(?:Traceback \(most recent call last\):|  File ".*", line \d+)\s*')
_EXCEPTION = re.compile(_PREFIX + rb"(?:[\w<>]+\.)*(\w+(?:: .*)?)\s*")
_AT_THE_END = 2.0  # seconds in which a program may still write after the traceback of the exception that ends it
_MOST_BYTES = 500  # of a text, as in comm.bootstrap.failure


@dataclass(frozen=True)
class Ended:
    """How a rank has ended.

    Attributes:
        who: rank and process, or worker, for messages.
        code: of its process: exit code, or minus the signal.
        stopped: whether it ended after the launcher had begun to end the job.
        blamed: the rank that it found lost or late, by its own report (comm.bootstrap.failure); None: none.
        text: the exception that ended it; "": none is known.
    """

    rank: int
    who: str
    code: int
    stopped: bool
    blamed: int | None = None
    text: str = ""

    @property
    def exit_code(self) -> int:
        """Exit code as a shell gives it."""
        return self.code if self.code >= 0 else 128 - self.code

    @property
    def failed(self) -> bool:
        """Whether it failed by itself."""
        return self.code != 0 and not self.stopped

    @property
    def how(self) -> str:
        """`exited with code 3` or `was killed by SIGKILL`."""
        return f"exited with code {self.code}" if self.code >= 0 else f"was killed by {signal_name(-self.code)}"

    def __str__(self) -> str:
        """Describe the end, with the exception if it is known."""
        return f"{self.who} {self.how}{': ' if self.text else ''}{self.text}"


class ExitReport:
    """The pipe on which a rank reports why it fails; both ends are open until `started`."""

    def __init__(self) -> None:
        self._reader, self.writer = os.pipe()
        os.set_blocking(self._reader, False)

    @property
    def value(self) -> str:
        """Value of the rank's variable."""
        return f"{self.writer}:{os.fstat(self.writer).st_ino}"

    def started(self) -> None:
        """The rank has the writing end."""
        os.close(self.writer)

    def read(self) -> tuple[int | None, str]:
        """The rank that is blamed, if any, and the exception, of a rank that has ended."""
        try:
            line = os.read(self._reader, 1 << 16).partition(b"\n")[0]
            report = json.loads(line) if line else {}
        except (OSError, ValueError):  # nothing, while a child of the rank is left; or not a report
            report = {}
        os.close(self._reader)
        blamed, text = (report.get("blamed"), report.get("text")) if isinstance(report, dict) else (None, None)
        return blamed if isinstance(blamed, int) else None, text if isinstance(text, str) else ""


class LastException:
    """The exception at the end of the last traceback that a rank has written on standard error."""

    def __init__(self) -> None:
        self._text, self._written, self._latest = b"", -math.inf, 0.0
        self._within = False

    def read(self, lines: Sequence[bytes]) -> None:
        """Read the next lines that the rank has written, without any tags."""
        self._latest = time.monotonic() if lines else self._latest
        for line in lines:
            if _TRACEBACK.fullmatch(line):
                self._within = True
            elif self._within and (found := _EXCEPTION.fullmatch(line)):
                self._text, self._written, self._within = found[2], self._latest, False

    def text_of_end(self) -> str:
        """Type and message if the program has ended by it: not of one that it logged before it continued; or ""."""
        if self._latest - self._written > _AT_THE_END:
            return ""
        return self._text[:_MOST_BYTES].decode(errors="replace")


def first_and_culprit(ended: Sequence[Ended]) -> tuple[Ended, Ended] | None:
    """The first rank that failed, and the one that led to it; None if none has failed.

    Args:
        ended: in order of time.
    """
    first = next((each for each in ended if each.failed), next((each for each in ended if each.code), None))
    if first is None:
        return None
    by_rank = {each.rank: each for each in ended}
    culprit, seen = first, {first.rank}
    while culprit.blamed in by_rank and culprit.blamed not in seen:
        culprit = by_rank[culprit.blamed]
        seen.add(culprit.rank)
    return first, culprit


def verdict(first: Ended, culprit: Ended) -> tuple[int, str]:
    """The exit code of the job, and a sentence that names the culprit: none alone if the ranks' calls differ."""
    if culprit.text.startswith("MismatchError: "):
        return culprit.exit_code, f"the ranks' calls differ; {culprit}"
    if culprit is first and first.stopped:  # by a signal of the launcher's
        return culprit.exit_code, f"the job was interrupted; {culprit}"
    if culprit is first or culprit.failed:
        return culprit.exit_code, str(culprit)
    if culprit.text:  # it was stopped while it ended
        return first.exit_code, f"{culprit.who} failed: {culprit.text}"
    if culprit.stopped:
        return first.exit_code, f"{culprit.who} did not respond; {first}"
    return first.exit_code, f"{culprit} while other ranks needed it; {first}"


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
