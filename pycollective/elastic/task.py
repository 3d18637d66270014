"""A function call that every worker of an elastic job is to make, and what these calls return; bytes for the driver."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from pycollective import settings
from pycollective.comm.bootstrap import elastic
from pycollective.comm.bootstrap import elastic_messages as messages


class Task:
    """
    Args:
        call: what a worker gets when it asks for its task (DriverConnection.fetch_task).

    Attributes:
        results: of the ranks of the last generation that have returned one.
        size: of the last generation; 0: there was none.
    """

    def __init__(self, call: bytes) -> None:
        self._call = call
        self.begin(0)

    def begin(self, size: int) -> None:
        self.size = size
        self.results: dict[int, bytes] = {}
        self._parts: dict[int, bytearray] = {}

    def take(self, rank: int, kind: int, payload: bytes) -> Iterator[tuple[int, bytes]]:
        """A worker's message; yields the kinds and payloads of the answers.

        Args:
            rank: the worker's, -1 if it has none yet.
        """
        if kind == messages.TASK:
            yield messages.TASK, self._call
        elif payload:
            self._parts.setdefault(rank, bytearray()).extend(payload)
        else:  # the result is complete
            self.results[rank] = bytes(self._parts.pop(rank, b""))
            yield messages.RESULT, b""


def run_task(make: Callable[[bytes], bytes]) -> None:
    """In a worker: fetch the task from its driver, call `make` with it, and hand in what that returns.

    Raises:
        BootstrapError: the driver cannot be reached. RuntimeError: the job has ended. What `make` raises.
    """
    seconds = float(settings.read("PYCOLLECTIVE_INIT_TIMEOUT"))
    driver = elastic.connect(os.environ, seconds)
    result = make(driver.fetch_task())
    if elastic.newest() is None:  # the call has not asked for a rank
        elastic.join(os.environ, seconds)
    driver.hand_in(result)
    driver.leave()
