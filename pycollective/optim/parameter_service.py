"""The server's side of a ParameterServer: the weights, the workers' clocks, and a thread for each worker."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pycollective.errors import Error, PeerLostError, TimeoutError
from pycollective.optim.arrays import namespace

if TYPE_CHECKING:
    from pycollective.comm.communicator import Communicator

PULL, PUSH, FINISH = range(3)
"""Kinds of requests: the first element of the header, int64 of shape (2,), that precedes their arrays."""
DONE, LOST, LATE = range(3)
"""First element of the header of a reply; the second one is the version of the weights, or the rank at fault."""


def failure(status: int, rank: int) -> Error:
    """The error for a reply other than DONE."""
    if status == LOST:
        return PeerLostError(f"rank {rank}, which trained with the parameter server, has been lost", rank)
    return TimeoutError(f"rank {rank} made no step with the parameter server in time")


class Failed(Exception):
    """A request failed; the arguments are those of `failure`."""


class Service:
    """The weights, to which every worker's gradients are applied as they arrive. Methods are called by many threads.

    Each holds one lock for its whole effect, so that no worker sees weights of a step that is half done.

    Attributes:
        version: number of gradients applied.
        counts: staleness -> number of gradients; staleness is the number of gradients applied between a worker's pull
            and its push.
    """

    def __init__(
        self,
        weights: Sequence[Any],
        workers: int,
        lr: float,
        momentum: float,
        staleness: int | None,
        timeout: float,
    ) -> None:
        """`weights`: flat arrays, which the service changes from now on. Other arguments: as in ParameterServer."""
        self.version, self.counts = 0, Counter[int]()
        self._weights, self._lr, self._momentum = weights, lr, momentum
        self._velocity = [namespace(flat).zeros_like(flat) for flat in weights] if momentum else []
        self._staleness, self._timeout = staleness, timeout
        self._clocks: dict[int, int] = dict.fromkeys(range(workers), 0)  # of the workers that have not finished
        self._pulled = [0] * workers  # versions
        self._failed: tuple[int, int] | None = None
        self._changed = threading.Condition()

    def pull(self, worker: int, into: Sequence[Any]) -> int:
        """Copy the weights into `into`, once the worker is at most `staleness` steps ahead; returns their version.

        Raises:
            Failed: another worker was lost, or is late.
        """
        with self._changed:
            if self._staleness is not None:
                bound = self._clocks[worker] - self._staleness
                self._wait(lambda: min(self._clocks.values()) >= bound)
            self._pulled[worker] = self.version
            return self._copy(into)

    def push(self, worker: int, gradients: Sequence[Any]) -> None:
        """Apply a worker's gradients; its clock advances."""
        with self._changed:
            self.counts[self.version - self._pulled[worker]] += 1
            for i, (flat, gradient) in enumerate(zip(self._weights, gradients, strict=True)):
                step = gradient
                if self._momentum:
                    step = self._velocity[i]
                    step *= self._momentum
                    step += gradient
                flat -= self._lr * step
            self.version += 1
            self._clocks[worker] += 1
            self._changed.notify_all()

    def finish(self, worker: int, into: Sequence[Any]) -> int:
        """The worker makes no more steps: wait for all others, then as `pull`."""
        with self._changed:
            del self._clocks[worker]
            self._changed.notify_all()
            self._wait(lambda: not self._clocks)
            return self._copy(into)

    def fail(self, status: int, rank: int) -> None:
        """Let all requests fail from now on, because of this rank; only the first failure is kept."""
        with self._changed:
            self._failed = self._failed or (status, rank)
            self._changed.notify_all()

    def _wait(self, ready: Callable[[], bool]) -> None:
        """Until `ready()`; the lock is released meanwhile. The slowest worker is at fault if that takes too long."""
        if not self._changed.wait_for(lambda: self._failed or ready(), self._timeout):
            self._failed = LATE, min(self._clocks, key=lambda worker: self._clocks[worker])
            self._changed.notify_all()
        if self._failed:
            raise Failed(*self._failed)

    def _copy(self, into: Sequence[Any]) -> int:
        for target, flat in zip(into, self._weights, strict=True):
            target[...] = flat
        return self.version


def serve(service: Service, comm: Communicator, worker: int, mailbox: Sequence[Any], timeout: float) -> None:
    """Answer a worker's requests until it has finished; the body of a thread.

    Args:
        mailbox: arrays like the weights, for this worker's messages.
        timeout: seconds between two requests of the worker.
    """
    header = np.zeros(2, np.int64)
    try:
        while True:
            comm.recv(header, worker, timeout=timeout)
            request = int(header[0])
            if request == PUSH:
                for flat in mailbox:
                    comm.recv(flat, worker, timeout=timeout)
                service.push(worker, mailbox)
                continue
            reply = _answer(service, worker, request, mailbox)
            comm.send(np.array(reply, np.int64), worker, timeout=timeout)
            if reply[0] == DONE:
                for flat in mailbox:
                    comm.send(flat, worker, timeout=timeout)
            if reply[0] != DONE or request == FINISH:
                return
    except Error as error:
        lost = error.rank if isinstance(error, PeerLostError) else worker
        service.fail(LATE if isinstance(error, TimeoutError) else LOST, lost)


def _answer(service: Service, worker: int, request: int, mailbox: Sequence[Any]) -> tuple[int, int]:
    """The header of the reply, with the weights in the mailbox if it is DONE."""
    try:
        return DONE, (service.pull if request == PULL else service.finish)(worker, mailbox)
    except Failed as error:
        status, rank = error.args
        return status, rank
