"""ParameterServer: asynchronous SGD, in which workers pull weights from one rank and push gradients to it."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pycollective import checks, settings
from pycollective.comm.world import given_or_world
from pycollective.optim.arrays import Arrays, copy_into, named, namespace
from pycollective.optim.fusion import Fused
from pycollective.optim.parameter_service import DONE, FINISH, PULL, PUSH, Failed, Service, failure, serve

if TYPE_CHECKING:
    from pycollective.comm.communicator import Communicator

_ANSWERS = 1.0
"""Most seconds that the server's rank waits, after a failure, for its threads to report it to the workers."""
_GRACE = 5.0
"""Seconds that a worker waits longer than the server, whose reply names the rank at fault."""


class ParameterServer:
    """Asynchronous SGD with a central server: no worker waits for another, up to a bound.

        server = ParameterServer(params, lr=0.01, staleness=4)
        for batch in batches:                       # each rank its own; their numbers may differ
            server.pull()                           # params are one version of the weights now
            server.push(gradients(params, batch))   # applied when it arrives
        server.finish()                             # params are the final weights, on all ranks

    The server's rank is a worker as well: threads beside its own training answer the others. A rank that is to serve
    only calls `finish` at once. Each push is one step of the server, with the velocity v, which starts at zero:

        v = momentum * v + g;  w = w - lr * v       without momentum: w = w - lr * g

    so n workers move the weights n times as often as DistributedSGD with its mean gradient: divide its lr by n.
    A worker that has made more than `staleness` steps more than the slowest waits in `pull` for that one: the
    stale synchronous parallel model of Ho et al., "More effective distributed ML via a stale synchronous parallel
    parameter server" (NeurIPS 2013). Results depend on the order in which gradients arrive.

    A pull never mixes two versions: the server copies the weights while it holds the lock that every push takes, and
    sends the copy by a message of the communicator, which orders memory between processes on every machine.

    Attributes:
        params: as passed; `pull` and `finish` write into these arrays.
        comm: of the participating ranks.
        server: the rank that holds the weights.
        version: number of gradients in the weights that were pulled last.
        staleness_counts: staleness -> number of gradients, where staleness is the number of gradients that the server
            applied between a worker's pull and its push: on the server at any time, on all ranks after `finish`.
    """

    def __init__(
        self,
        params: Arrays,
        lr: float,
        momentum: float = 0.0,
        staleness: int | None = None,
        comm: Communicator | None = None,
        *,
        server: int = 0,
        timeout: float | None = None,
    ) -> None:
        """Collective: all ranks start from the server's parameters.

        Args:
            params: dict or list of writable floating-point arrays in CPU memory; shapes and dtypes are the same on all
                ranks.
            lr: step size, at least 0; the server's counts, like its momentum, staleness and timeout.
            momentum: factor on the velocity, at least 0.
            staleness: steps that a worker may be ahead of the slowest; 0: all do step t before any does t + 1; None: no
                bound.
            comm: of the participating ranks; by default that of `pycollective.init`.
            server: the rank that holds the weights.
            timeout: seconds that a worker may take for a step, and wait for the slowest; default PYCOLLECTIVE_TIMEOUT.

        Raises:
            ValueError: a negative number, or server is not a rank. TypeError: not such arrays or numbers.
            MismatchError: names, shapes or dtypes differ between ranks.
        """
        lr = checks.number(lr, "lr", 0)
        momentum = checks.number(momentum, "momentum", 0)
        staleness = None if staleness is None else checks.integer(staleness, "staleness", 0)
        default = float(settings.read("PYCOLLECTIVE_TIMEOUT"))
        self._timeout = default if timeout is None else checks.number(timeout, "timeout", above=0, finite=False)
        outer = given_or_world(comm)
        self.server = checks.integer(server, "server", 0, outer.size - 1)
        self.comm, self.params, self._params = outer, params, named(params)
        self.version = 0
        self.staleness_counts: dict[int, int] = {}
        self._messages = outer.dup()
        self._fused = Fused(self._params, self._messages)
        self._fused.broadcast(self._params, self.server)
        self._service: Service | None = None
        self._finished, self._threads = False, list[threading.Thread]()
        if outer.rank == self.server:
            self._begin(Service(self._copies(), outer.size, lr, momentum, staleness, self._timeout))
        else:  # opens both channels before the server's threads use them
            self._send(PULL)
            self._receive()

    def pull(self) -> int:
        """Overwrite the parameters with the server's weights, once this worker is not too far ahead.

        Returns:
            the version of the weights: the number of gradients applied to them.

        Raises:
            PeerLostError: a worker or the server has been lost. TimeoutError: a rank (named) is late.
            ValueError: called after `finish`.
        """
        return self._request(PULL)

    def push(self, grads: Arrays) -> None:
        """Send this worker's gradients; returns before they are applied.

        Args:
            grads: in the container, shapes and dtypes of the parameters.

        Raises:
            ValueError, TypeError: other names, shapes or dtypes; nothing was sent. Called after `finish`.
            PeerLostError, TimeoutError: as `pull`.
        """
        self._require_open()
        copy_into(self._fused.views, named(grads, "grads"))
        if self._service is not None:
            self._service.push(self.server, self._fused.buffers)
            self.staleness_counts = dict(self._service.counts)
        else:
            self._send(PUSH, self._fused.buffers)

    def finish(self) -> None:
        """Collective: wait until all workers have finished; the parameters are the final weights on all ranks.

        Raises:
            PeerLostError, TimeoutError, ValueError: as `pull`.
        """
        self._request(FINISH)
        self._finished = True
        for thread in self._threads:
            thread.join()
        counts: dict[int, int] = dict(sorted(self._service.counts.items())) if self._service is not None else {}
        self.staleness_counts = self._messages.broadcast_object(counts, self.server)
        self._messages.free()

    # -- messages ------------------------------------------------------------------------------------------------------

    def _begin(self, service: Service) -> None:
        """Open the channels on the server, then start a thread for each of the other ranks."""
        self._service = service
        others = [rank for rank in range(self.comm.size) if rank != self.server]
        for rank in others:
            self._messages.recv(_header(), rank, timeout=self._timeout)
            for message in (_header(DONE), *self._fused.buffers):
                self._messages.send(message, rank, timeout=self._timeout)
        for rank in others:
            arguments = (service, self._messages, rank, self._copies(), self._timeout)
            name = f"pycollective parameter server for rank {rank}"
            self._threads.append(threading.Thread(target=serve, args=arguments, name=name, daemon=True))
            self._threads[-1].start()

    def _request(self, request: int) -> int:
        self._require_open()
        if self._service is None:
            self._send(request)
            self._receive()
        else:
            answer = self._service.pull if request == PULL else self._service.finish
            try:
                self.version = answer(self.server, self._fused.buffers)
            except Failed as error:
                self._let_threads_answer()
                raise failure(*error.args) from None
        copy_into(self._params, self._fused.views)
        return self.version

    def _let_threads_answer(self) -> None:
        """Before the server's rank raises, and may free the communicator: the others' replies name the same rank."""
        deadline = time.monotonic() + _ANSWERS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _send(self, request: int, arrays: Sequence[Any] = ()) -> None:
        for message in (_header(request), *arrays):
            self._messages.send(message, self.server, timeout=self._timeout + _GRACE)

    def _receive(self) -> None:
        """A reply: its header, and the weights, into the buffers."""
        header = self._messages.recv(_header(), self.server, timeout=self._timeout + _GRACE)
        if header[0] != DONE:
            raise failure(int(header[0]), int(header[1]))
        for flat in self._fused.buffers:
            self._messages.recv(flat, self.server, timeout=self._timeout + _GRACE)
        self.version = int(header[1])

    def _copies(self) -> list[Any]:
        """Copies of the buffers in private memory."""
        return [namespace(flat).zeros_like(flat) + flat for flat in self._fused.buffers]

    def _require_open(self) -> None:
        if self._finished:
            raise ValueError("this worker has finished: make a new ParameterServer on all ranks")


def _header(kind: int = 0) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array([kind, 0], np.int64)
