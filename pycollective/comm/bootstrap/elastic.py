"""The worker's end of an elastic job: it asks the driver (pycollective/elastic) for a rank, generation by generation.

The driver's connection also serves for the allgather of the bootstrap: so a rank that is lost while a generation starts
is reported to the others at once.
"""

from __future__ import annotations

import contextlib
import os
import queue
import selectors
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping

from pycollective import settings
from pycollective.comm.bootstrap import elastic_messages as messages
from pycollective.comm.bootstrap import places
from pycollective.comm.bootstrap.elastic_messages import Ask, Generation, Update
from pycollective.comm.bootstrap.launchers import ELASTIC_DRIVER
from pycollective.comm.bootstrap.sockets.authentication import Claim, digest, parse_token
from pycollective.comm.bootstrap.sockets.dialling import Endpoint, dial
from pycollective.comm.bootstrap.sockets.frames import Reader, frame, unpack
from pycollective.comm.bootstrap.sockets.this_host import host_name
from pycollective.errors import BootstrapError

WORKER = "PYCOLLECTIVE_ELASTIC_WORKER"
_IDLE, _INTERVAL, _PROBES = 5, 2, 3  # seconds until the kernel asks a silent host, between questions, and their number
_MOST_ANSWER = 1 << 30
_ENDED = "the driver of this elastic job has ended"
_GONE = 0  # in the queue: the connection has ended


def _end_this_process() -> None:
    print(f"pycollective: {_ENDED}", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGTERM)


class DriverConnection:
    """This process's connection to the driver, for its whole life.

    Attributes:
        ask: what the next request will be; changed by elastic.run.

    Args:
        env: the variables given by the driver. timeout: seconds to reach it.
        gone: called, from another thread, when the driver has ended; by default it ends this process by SIGTERM.

    Raises:
        BootstrapError: the driver cannot be reached.
    """

    def __init__(self, env: Mapping[str, str], timeout: float, gone: Callable[[], object] | None = None) -> None:
        self.ask = Ask()
        self._when_gone = _end_this_process if gone is None else gone
        self._listener: Callable[[float, int], object] | None = None
        self._unheard: list[Update] = []
        self._lock = threading.Lock()
        self.token = parse_token(settings.read("PYCOLLECTIVE_TOKEN", env))
        where, number = env[ELASTIC_DRIVER], env.get(WORKER, "")
        try:
            host, _, port = where.rpartition(":")
            endpoint = Endpoint("the driver's", host.strip("[]"), int(port))
            claim = Claim(int(number), 0, 0, digest(self.token, messages.PURPOSE))
        except ValueError:
            text = f"{ELASTIC_DRIVER}={where!r}, {WORKER}={number!r}: must be ADDRESS:PORT and a number"
            raise BootstrapError(text) from None
        places.take(where, f"worker {number}", {ELASTIC_DRIVER: where, WORKER: number})
        try:
            self._socket = dial(endpoint, self.token, claim, time.monotonic() + timeout)
        except TimeoutError as error:
            raise BootstrapError(
                f"worker {number} on host {host_name()} cannot reach the elastic driver at {where}: {error}"
            ) from None
        detect_loss(self._socket)
        self._answers: queue.SimpleQueue[tuple[int, bytes]] = queue.SimpleQueue()
        self._gone = False
        threading.Thread(target=self._listen, name="pycollective elastic driver", daemon=True).start()

    def next_generation(self) -> Generation:
        """Wait until the driver has formed the next generation; it limits the time.

        Raises:
            SystemExit: this worker is not needed any more: code 0. RuntimeError: the job ends.
        """
        self._send(messages.ASK, messages.ASKS.encode(self.ask))
        payload = self._await(messages.FORMED)
        with self._lock:
            self._unheard.clear()  # updates that led to this generation
        return messages.GENERATIONS.decode(payload, 0)

    def fetch_task(self) -> bytes:
        """What the launcher wants this worker to call (pycollective/elastic/task.py)."""
        self._send(messages.TASK, b"")
        return self._await(messages.TASK)

    def hand_in(self, result: bytes) -> None:
        """Send what the task has returned; returns when the driver has it. This worker has a rank."""
        for at in range(0, len(result), messages.MOST_BYTES):
            self._send(messages.RESULT, result[at : at + messages.MOST_BYTES])
        self._send(messages.RESULT, b"")
        self._await(messages.RESULT)

    def listen(self, listener: Callable[[float, int], object] | None) -> None:
        """Call it with time and result of each update of the hosts, from another thread; None: keep them for later."""
        with self._lock:
            self._listener, updates = listener, self._unheard
            if listener is not None:
                self._unheard = []
                for update in updates:
                    listener(update.time, update.result)

    def gather(self, data: bytes, timeout: float) -> list[bytes]:
        """An allgather of the generation.

        Raises:
            BootstrapError: the generation has ended, or ranks are missing at the timeout.
        """
        self._send(messages.ROUND, data)
        try:
            kind, payload = self._answers.get(timeout=timeout)
        except queue.Empty:
            raise BootstrapError(f"not all ranks of the generation have arrived within {timeout:g} s") from None
        if kind != messages.GATHERED:
            raise BootstrapError(payload.decode(errors="replace") or "the driver has ended this generation")
        return unpack(payload)

    def close(self) -> None:
        """End the connection, as the end of the process does."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def leave(self) -> None:
        """This process needs no further rank, but does not end yet: it may outlive its driver."""
        self._when_gone = lambda: None

    def _await(self, wanted: int) -> bytes:
        """The driver's next message of a kind; others are answers to the generation before.

        Raises:
            SystemExit, RuntimeError: see `next_generation`.
        """
        while True:
            kind, payload = self._answers.get()
            if kind == wanted:
                return payload
            if kind == messages.LEAVE:
                sys.exit(0)
            if kind in (messages.REFUSED, _GONE):
                raise RuntimeError(payload.decode(errors="replace"))

    def _send(self, kind: int, payload: bytes) -> None:
        data = memoryview(frame(kind, payload))
        with selectors.PollSelector() as selector:
            selector.register(self._socket, selectors.EVENT_WRITE)
            while data and not self._gone:
                selector.select(1.0)
                try:
                    data = data[self._socket.send(data) :]
                except BlockingIOError:
                    pass
                except OSError:  # the thread that listens reports it
                    return

    def _listen(self) -> None:
        reader = Reader(_MOST_ANSWER)
        with selectors.PollSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            while True:
                try:
                    found = reader.read(self._socket)
                except (OSError, EOFError, ValueError):
                    break
                if found is None:
                    selector.select()
                elif found[0] == messages.UPDATED:
                    self._notify(messages.UPDATES.decode(found[1], 0))
                else:
                    self._answers.put(found)
        self._gone = True
        self._answers.put((_GONE, _ENDED.encode()))
        self._when_gone()

    def _notify(self, update: Update) -> None:
        with self._lock:
            if self._listener is None:
                self._unheard.append(update)
            else:
                self._listener(update.time, update.result)


class GenerationBootstrap:
    """The Bootstrap of one generation; exchanges through the driver."""

    kind = "pycollective"

    def __init__(self, connection: DriverConnection, generation: Generation, timeout: float) -> None:
        self.rank, self.size, self.token = generation.rank, generation.size, connection.token
        self._connection, self._timeout = connection, timeout

    def allgather(self, data: bytes, timeout: float | None = None) -> list[bytes]:
        if len(data) > messages.MOST_BYTES:
            raise ValueError(f"{len(data)} bytes are more than the {messages.MOST_BYTES} that a worker may send")
        return self._connection.gather(data, self._timeout if timeout is None else timeout)

    def close(self) -> None:
        """The connection to the driver remains."""


def detect_loss(peer: socket.socket) -> None:
    """Let the kernel end a connection to a host that does not answer; a process that hangs does not matter."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, number in (
        (socket.TCP_KEEPIDLE, _IDLE),
        (socket.TCP_KEEPINTVL, _INTERVAL),
        (socket.TCP_KEEPCNT, _PROBES),
        (socket.TCP_USER_TIMEOUT, 1000 * (_IDLE + _INTERVAL * _PROBES)),
    ):
        peer.setsockopt(socket.IPPROTO_TCP, option, number)


def connection() -> DriverConnection | None:
    return _connection


def newest() -> Generation | None:
    return _newest


def join(env: Mapping[str, str], timeout: float) -> GenerationBootstrap:
    """Ask the driver for the next generation, and set the variables of its rank in os.environ.

    Args:
        timeout: seconds to reach the driver, and for each round of the bootstrap.

    Raises:
        BootstrapError: the driver cannot be reached. SystemExit, RuntimeError: see DriverConnection.next_generation.
    """
    global _newest
    driver = connect(env, timeout)
    _newest = driver.next_generation()
    os.environ.update(rank_variables(_newest))
    return GenerationBootstrap(driver, _newest, timeout)


def connect(env: Mapping[str, str], timeout: float) -> DriverConnection:
    """This process's connection to its driver, made by the first call. See DriverConnection."""
    global _connection
    if _connection is None:
        _connection = DriverConnection(env, timeout)
    return _connection


def rank_variables(generation: Generation) -> dict[str, str]:
    """The variables that launchers set for a rank: ours, torch's and Horovod's."""
    numbers = {
        "RANK": generation.rank,
        "SIZE": generation.size,
        "LOCAL_RANK": generation.local_rank,
        "LOCAL_SIZE": generation.local_size,
    }
    named = {prefix + name: str(number) for name, number in numbers.items() for prefix in (settings.PREFIX, "HOROVOD_")}
    plain = {"RANK": "RANK", "SIZE": "WORLD_SIZE", "LOCAL_RANK": "LOCAL_RANK", "LOCAL_SIZE": "LOCAL_WORLD_SIZE"}
    return named | {plain[name]: str(number) for name, number in numbers.items()}


_connection: DriverConnection | None = None
_newest: Generation | None = None
