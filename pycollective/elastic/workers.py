"""The workers of an elastic job: how they are started, and what the driver knows of each."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from pycollective.comm.bootstrap.elastic_messages import Ask


class WorkerHandle(Protocol):
    """A started worker."""

    def poll(self) -> int | None:
        """Its exit code, 128 + the signal for one that was ended by one; None: it runs, or starts. Does not block."""
        ...

    def signal(self, number: int) -> None:
        """Send it a signal; no error if it has ended. After SIGKILL, `poll` soon returns a code."""
        ...


class Workers(Protocol):
    """Starts processes."""

    def start(self, host: str, slot: int, environment: Mapping[str, str]) -> WorkerHandle:
        """Start a worker on a host; does not block.

        Args:
            slot: its number among those of the host, from 0 on.
            environment: variables that it needs before init().

        Raises:
            OSError, BootstrapError: it cannot be started there.
        """
        ...


@dataclass(eq=False)
class Worker:
    """A process that has not ended.

    Attributes:
        number: by which it is known to the driver; never used again.
        ask: what it waits for; None: it runs.
        rank: in its last generation; -1: it was in none.
        synced: whether it has the state.
        leaves: whether it is not needed any more.
        kill_at: when it gets SIGKILL.
    """

    number: int
    host: str
    slot: int
    handle: WorkerHandle
    started: float = field(default_factory=time.monotonic)
    ask: Ask | None = None
    asked: bool = False
    rank: int = -1
    synced: bool = False
    leaves: bool = False
    kill_at: float | None = None

    def __str__(self) -> str:
        rank = f"rank {self.rank}, " if self.rank >= 0 else ""
        return f"worker {self.number} ({rank}host {self.host})"
