"""Who has not submitted what others wait for, where ranks share no memory; csrc/engine/stalls.cpp, otherwise."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence

from pycollective import _core
from pycollective.comm.rendezvous import name_ranks
from pycollective.engine.agreed import Operation
from pycollective.errors import TimeoutError

_LOOK_SECONDS = 0.25


class Stalls:
    """Looks for stalls now and then, and tells standard error: the first rank that waits for an operation does."""

    def __init__(self, name: str, rank: int, size: int, warn_seconds: float, shutdown_seconds: float) -> None:
        """`name`: of the communicator. Seconds until a warning, and until the end of the job; 0: never."""
        self._me = f"pycollective: communicator {name!r}, rank {rank}"
        self._rank, self._size = rank, size
        self._warn_seconds, self._shutdown_seconds = warn_seconds, shutdown_seconds
        self._looked = self._warned = time.monotonic()
        self._reports = _core.reports_wanted()

    def look(self, operations: Iterable[Operation], joined: Sequence[int], silent: Sequence[int], since: float) -> None:
        """Tell what there is to tell, if it is time to.

        Args:
            operations: that some ranks have submitted.
            joined: ranks that have joined.
            silent: ranks whose message of this round has not come.
            since: time.monotonic() when the round began.
        """
        now = time.monotonic()
        if now - self._looked < _LOOK_SECONDS:
            return
        self._looked = now
        told = list(operations)
        quiet = _silence(silent, now - since) if silent else ""
        if (wanted := _core.reports_wanted()) != self._reports:
            self._reports = wanted
            text = self.report(told, joined) + (quiet if now - since >= _LOOK_SECONDS else "")
            self._say("operations that wait:\n" + text if text else "no operation waits for a rank\n")
        if 0 < self._warn_seconds <= now - self._warned:
            late = [one for one in told if min(one.said) == self._rank]
            text = self.report(late, joined, self._warn_seconds) + (quiet if now - since >= self._warn_seconds else "")
            if text:
                self._warned = now
                self._say("some ranks have not submitted what others wait for:\n" + text)

    def report(self, operations: Iterable[Operation], joined: Sequence[int], seconds: float = 0) -> str:
        """What has waited for `seconds`, and for which ranks, one line each."""
        now, lines = time.monotonic(), []
        for one in operations:
            missing = [rank for rank in range(self._size) if rank not in one.said and rank not in joined]
            waits = missing and one.signature.collective != "join" and now - one.since >= seconds
            if waits:
                lines.append(f"  {one.name!r} has waited {now - one.since:.1f} s for {name_ranks(missing)}\n")
        return "".join(lines)

    def overdue(self, operations: Iterable[Operation], joined: Sequence[int]) -> TimeoutError | None:
        """What ends the job, if something has waited too long."""
        text = self.report(operations, joined, self._shutdown_seconds) if self._shutdown_seconds else ""
        return TimeoutError("operations waited too long:\n" + text) if text else None

    def _say(self, text: str) -> None:
        sys.stderr.write(f"{self._me}: {text}")
        sys.stderr.flush()


def _silence(ranks: Sequence[int], seconds: float) -> str:
    have = "has" if len(ranks) == 1 else "have"
    return f"  {name_ranks(ranks)} {have} not answered for {seconds:.1f} s\n"
