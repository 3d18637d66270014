"""Reports which ranks have not submitted operations that others wait for (without shared memory; cf. stalls.cpp)."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from pycollective import _core
from pycollective.comm.bootstrap.rendezvous import name_ranks
from pycollective.errors import TimeoutError

_LOOK_SECONDS = 0.25


class Stalls:
    """Checks for stalls periodically and reports them on standard error, from the first rank that waits."""

    def __init__(self, name: str, rank: int, warn_seconds: float, shutdown_seconds: float) -> None:
        """`name`: of the communicator. Seconds until a warning, and until the job is ended; 0: never."""
        self._me = f"pycollective: communicator {name!r}, rank {rank}"
        self._rank = rank
        self._warn_seconds, self._shutdown_seconds = warn_seconds, shutdown_seconds
        self._looked = self._warned = time.monotonic()
        self._reports = _core.reports_wanted()

    def look(self, agreement: _core.Agreement, silent: Sequence[int], since: float) -> None:
        """Report stalls, if it is time to.

        Args:
            agreement: of the operations that some ranks have submitted.
            silent: ranks whose message of this round has not arrived.
            since: time.monotonic() when the round began.
        """
        now = time.monotonic()
        if now - self._looked < _LOOK_SECONDS:
            return
        self._looked = now
        quiet = _silence(silent, now - since) if silent else ""
        if (wanted := _core.reports_wanted()) != self._reports:
            self._reports = wanted
            text = agreement.report() + (quiet if now - since >= _LOOK_SECONDS else "")
            self._report("operations that wait:\n" + text if text else "no operation waits for a rank\n")
        if 0 < self._warn_seconds <= now - self._warned:
            text = agreement.report(self._warn_seconds, self._rank)
            text += quiet if now - since >= self._warn_seconds else ""
            if text:
                self._warned = now
                self._report("some ranks have not submitted what others wait for:\n" + text)

    def overdue(self, agreement: _core.Agreement) -> TimeoutError | None:
        """The error that ends the job, if an operation has waited too long."""
        text = agreement.report(self._shutdown_seconds) if self._shutdown_seconds else ""
        limit = "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS, by default PYCOLLECTIVE_TIMEOUT"
        waited = f"operations waited for more than {self._shutdown_seconds:g} s ({limit}):\n"
        return TimeoutError(waited + text) if text else None

    def _report(self, text: str) -> None:
        sys.stderr.write(f"{self._me}: {text}")
        sys.stderr.flush()


def _silence(ranks: Sequence[int], seconds: float) -> str:
    have = "has" if len(ranks) == 1 else "have"
    return f"  {name_ranks(ranks)} {have} not answered for {seconds:.1f} s\n"
