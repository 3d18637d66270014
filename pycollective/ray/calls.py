"""Calls of all workers: their results, values that they log meanwhile, and what happens when one of them fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayActorError
from ray.util.queue import Queue

from pycollective.cli.launch.job import KILL_AFTER
from pycollective.errors import PeerLostError
from pycollective.hvd.exceptions import HorovodInternalError

Callbacks = Sequence[Callable[[Any], Any]] | None
LOOK_EVERY = 0.1
"""Seconds between reads of the queue of logged values."""


class Log:
    """Values that ranks log, and the callbacks that get them in the calling thread."""

    def __init__(self, callbacks: Callbacks) -> None:
        self._callbacks = list(callbacks or ())
        self.queue = Queue(actor_options={"num_cpus": 0}) if self._callbacks else None

    def pass_on(self) -> None:
        if self.queue is None:
            return
        for value in self.queue.get_nowait_batch(self.queue.qsize()):
            for callback in self._callbacks:
                callback(value)

    def close(self) -> None:
        if self.queue is not None:
            self.queue.shutdown(force=True)


@dataclass
class CallOutcome:
    """Results of one call of each worker, by rank.

    Attributes:
        results: of the calls that returned. errors: of those that failed, as Ray raises them.
        running: whether calls had not ended KILL_AFTER seconds after the first failure.
    """

    results: dict[int, Any] = field(default_factory=dict)
    errors: dict[int, Exception] = field(default_factory=dict)
    running: bool = False

    @property
    def lost(self) -> bool:
        return any(isinstance(error, RayActorError) for error in self.errors.values())

    def first_error(self, hosts: Sequence[str]) -> Exception:
        """The error to raise: Ray's of the rank that caused the others' failures, or PeerLostError for a process that
        has ended. Its text names rank and host.

        Args:
            hosts: names of the ranks' hosts.
        """
        rank = min(self.errors, key=lambda rank: _likeliest_cause(self.errors[rank]))
        error = self.errors[rank]
        if not isinstance(error, RayActorError):
            return error
        lost = PeerLostError(f"the process of rank {rank} on host {hosts[rank]} has ended: {error}", rank)
        lost.__cause__ = error
        return lost


def wait_for(calls: Sequence[Any], log: Log) -> CallOutcome:
    """Wait until all calls have ended, or one has failed and the others have had KILL_AFTER seconds to end too.

    Those usually wait for the one that failed, so that they cannot.

    Args:
        calls: references of Ray, by rank.
    """
    rank_of = {call: rank for rank, call in enumerate(calls)}
    outcome, pending, deadline = CallOutcome(), list(calls), float("inf")
    while pending and time.monotonic() < deadline:
        ready, pending = ray.wait(pending, timeout=None if log.queue is None and not outcome.errors else LOOK_EVERY)
        for call in ready:
            try:
                outcome.results[rank_of[call]] = ray.get(call)
            except Exception as error:
                outcome.errors[rank_of[call]] = error
                deadline = min(deadline, time.monotonic() + KILL_AFTER)
        log.pass_on()
    outcome.running = bool(pending)
    return outcome


def reports_a_loss(error: Exception) -> bool:
    """Return whether an error of a rank is only the consequence of another rank's."""
    return isinstance(error, (PeerLostError, HorovodInternalError, TimeoutError))


def _likeliest_cause(error: Exception) -> int:
    """Sorts a process that has ended before exceptions, and these before those that only report another rank's loss."""
    if isinstance(error, RayActorError):
        return 0
    return 1 + reports_a_loss(error)
