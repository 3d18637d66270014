"""NCCL communicators, and the calls of `topology="nccl"` over them."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from pycollective import _core
from pycollective.comm.bootstrap.nodes import node_key
from pycollective.comm.cuda.nccl.library import NCCL, Library, arithmetic, blocks_for, lacks, library
from pycollective.comm.cuda.planner import Planned
from pycollective.comm.cuda.runtime import load
from pycollective.comm.cuda.signature import UNSCALED, Signature, sign
from pycollective.comm.cuda.watch import fail_if_lost, watch
from pycollective.comm.host.segments import Exchange, first_problem
from pycollective.comm.host.team import HostTeam
from pycollective.comm.request import CallRequest
from pycollective.errors import CommunicatorError, Error, TimeoutError

_CLOSING_SECONDS = 5.0
_NEWS_SECONDS = 0.5


class NcclRail:
    """One NCCL communicator. Collective.

    Args:
        exchange: among the ranks; used twice, also on failure.
        most_blocks: thread blocks that NCCL may use; 0 for no limit.

    Raises:
        CommunicatorError: on every rank, if one lacks NCCL, has another version or cannot connect; states which.
    """

    def __init__(self, exchange: Exchange, rank: int, size: int, device: int, most_blocks: int = 0) -> None:
        self.rank, self.size, self.device = rank, size, device
        self._lock = threading.Lock()
        self._flying: deque[tuple[Any, float, str]] = deque()
        self._comm: Any = None
        self._ones: Any = None
        received = [json.loads(text) for text in exchange(json.dumps(self._introduce()).encode())]
        problem = _obstacle(received)
        if not problem:
            try:
                self._connect(received, most_blocks)
            except CommunicatorError as error:
                problem = f"rank {rank}: {error}"
        if problem := first_problem(exchange, problem):
            self.abort()
            raise CommunicatorError(f"no NCCL communicator: {problem}")

    def _introduce(self) -> dict[str, Any]:
        """What the other ranks need to know about this one."""
        info: dict[str, Any] = {"problem": "", "version": 0, "id": "", "gpu": ""}
        try:
            self.library: Library = library()
            info["version"] = self.library.version
            info["gpu"] = node_key().hex() + load().properties(self.device)["uuid"]
            info["id"] = self.library.handle.unique_id().hex() if self.rank == 0 else ""
        except (CommunicatorError, ImportError) as error:
            info["problem"] = str(error)
        return info

    def _connect(self, received: Sequence[dict[str, Any]], most_blocks: int) -> None:
        cuda = load()
        ranks_here = [info["gpu"] for info in received].count(received[self.rank]["gpu"])
        properties = cuda.properties(self.device)
        self.capability: tuple[int, int] = tuple(properties["compute_capability"])
        blocks = blocks_for(ranks_here, properties["multiprocessors"], self.library.version, most_blocks)
        identity = bytes.fromhex(received[0]["id"])
        self._comm = cuda.NcclComm(self.library.handle, identity, self.size, self.rank, self.device, blocks)
        limit = _core.timeout_of(None)
        if not self._comm.settle(limit):
            raise CommunicatorError(f"not all ranks have connected within {limit:g} s")

    def lacks(self, signature: Signature) -> str | None:
        return lacks(signature, self.library.version, self.capability)

    def run(self, s: Signature, x: int, out: int, stream: int, timeout: float) -> None:
        """Enqueue a collective in a stream.

        Args:
            s: its signature, of what NCCL does not lack; root and counts refer to this communicator's ranks.
            x, out: addresses; 0 if there is none. May be equal.
            timeout: seconds for the peers to call; counted from now also for work in the stream.

        Raises:
            CommunicatorError: NCCL reports an error. TimeoutError: a peer has not called.
        """
        if s.row.program != s.collective:  # a barrier
            s, x = Signature(s.row.program, "uint8", 1, None, -1, "sum", NCCL, UNSCALED, 0), self._one()
            out = x
        a = arithmetic(s, self.size)
        counts = [count * a.width for count in s.counts or ()]
        end = time.monotonic() + timeout
        with self._lock:
            if self._comm is None:
                raise CommunicatorError("the NCCL communicator was freed")
            done = self._comm.run(
                s.collective, x, out, s.count * a.width, counts, a.type, a.itemsize, a.op, a.scalar, max(s.root, 0),
                stream, timeout,
            )  # fmt: skip
        if not done:
            raise TimeoutError(f"NCCL's other ranks have not called {s.text(NCCL)} within {timeout:g} s")
        self._note(stream, end, s)

    def _one(self) -> int:
        """Memory of one byte, for barriers."""
        if self._ones is None:
            self._ones = load().allocate_plain(self.device, 16)
        return int(self._ones.address)

    def _note(self, stream: int, end: float, s: Signature) -> None:
        """Record the deadline of a call. A call that is being captured has none."""
        cuda = load()
        if cuda.is_capturing(stream):
            return
        while self._flying and self._flying[0][0].done():
            self._flying.popleft()
        event = cuda.Event(self.device)
        event.record(stream)
        self._flying.append((event, end, s.text(NCCL)))

    def failure(self) -> Error | None:
        """The error of calls in progress: NCCL's own report, or a missed deadline. Does not wait."""
        comm = self._comm
        if comm is None:
            return None
        if (text := comm.failure()) is not None:
            return CommunicatorError(text)
        now = time.monotonic()
        for event, end, what in list(self._flying):
            if now > end and not event.done():
                return TimeoutError(f"{what} has not completed by its deadline: a rank has not made the call")
        return None

    def abort(self) -> None:
        """Abort the kernels in flight. May be called from any thread."""
        if (comm := self._comm) is not None:
            comm.abort()

    def close(self) -> None:
        """Finish calls in progress, together with the other ranks; aborts if a peer does not respond."""
        with self._lock:
            comm, self._comm = self._comm, None
        if comm is not None:
            comm.close(_CLOSING_SECONDS)
        self._flying.clear()


def _obstacle(received: Sequence[dict[str, Any]]) -> str:
    """What prevents the ranks from connecting; the same on all of them."""
    for rank, info in enumerate(received):
        if info["problem"]:
            return f"rank {rank}: {info['problem']}"
        if info["version"] != received[0]["version"]:
            return (
                f"rank 0 has NCCL version {received[0]['version']}, rank {rank} {info['version']}: "
                "all ranks need the same"
            )
    return ""


class NcclTeam:
    """A communicator's calls with `topology="nccl"`. A Backend. Created by the first of them, which is collective.

    Args:
        note: compares a call with the peers', if they share memory.
    """

    def __init__(self, host: HostTeam, device: int, note: Callable[[Planned], None] | None = None) -> None:
        self._host, self.device, self._note = host, device, note
        self._rails: dict[int, NcclRail] = {}
        self._adopted: list[tuple[NcclRail, Any]] = []
        self._closed = False

    def run(self, request: CallRequest) -> None:
        """Enqueue a call in its stream.

        Raises:
            MismatchError: a peer's call differs. TimeoutError, PeerLostError, CommunicatorError: poison the
            communicator, except for calls that NCCL does not support: they are refused before anything is sent.
        """
        self.check()
        s = sign(request)
        if s.max_channels not in self._rails and load().is_capturing(request.stream):
            raise CommunicatorError("make one call with topology='nccl' before the stream is captured")
        rail = self.connect(s.max_channels)
        if (reason := rail.lacks(s)) is not None:
            raise CommunicatorError(f"{reason}: omit topology='nccl'")
        if self._note is not None:
            self._note(Planned(None, s.digest(NCCL, NCCL), s.text(NCCL)))
        x = request.x.address if request.x is not None else 0
        out = request.out.address if request.out is not None else 0
        self.guard(lambda: rail.run(s, x, out, request.stream, _core.timeout_of(request.timeout)))

    def guard(self, action: Callable[[], None]) -> None:
        """Run an action of all ranks: if it fails, the communicator is poisoned."""
        try:
            action()
        except Error as error:
            self._fail(error)
            self.check()
            raise

    def connect(self, most_blocks: int) -> NcclRail:
        """Collective: the NCCL communicator for calls that may use this many blocks; created once.

        Raises:
            CommunicatorError: the ranks are threads, or NCCL is not usable on all of them; states why.
        """
        if most_blocks not in self._rails:
            group = self._host.group
            if group.threads and group.size > 1:
                raise CommunicatorError("topology 'nccl' is for ranks that are processes; these are threads of one")
            if not self._rails:
                watch(self._host, self)
            self._rails[most_blocks] = NcclRail(self._host.exchange, group.rank, group.size, self.device, most_blocks)
        return self._rails[most_blocks]

    def adopt(self, rail: NcclRail, within: Any) -> None:
        """Also watch another NCCL communicator, and the GPU side of the host's ranks that belongs to it."""
        self._adopted.append((rail, within))

    def check(self) -> None:
        if self._closed:
            raise CommunicatorError("the communicator was freed")
        self.look()
        if self._host.team.poisoned:
            self.abort()  # else freeing this call's arrays would wait for it
            self._host.check()

    def look(self) -> None:
        """Called by the watcher: check NCCL's state and the deadlines, and notify the other ranks of the host."""
        if self._closed or self._host.team.poisoned:
            return
        found = next(filter(None, (rail.failure() for rail in self._all())), None)
        for _, within in self._adopted:
            try:
                within.check()
            except Error as error:
                found = found or error
        if found is not None:
            self._fail(found)

    def abort(self) -> None:
        for rail in self._all():
            rail.abort()
        for _, within in self._adopted:
            within.abort()

    def _all(self) -> list[NcclRail]:
        return [*self._rails.values(), *(rail for rail, _ in self._adopted)]

    def close(self) -> None:
        self._closed = True
        for rail in self._all():
            rail.close()
        self._rails, self._adopted = {}, []

    def _fail(self, error: Error) -> None:
        host = self._host
        if not host.team.poisoned and (isinstance(error, TimeoutError) or not _died(host)):
            host.fail(error, host.group.rank)
            # Before kernels abort: their output must not be taken for a result on the host's other ranks.
            for _, within in self._adopted:
                within.give_up(error)
        self.abort()


def _died(host: HostTeam) -> bool:
    """Return whether a dead peer explains an error of NCCL; it is then reported as such.

    NCCL sees a broken connection, often before the core detects which process died. Between hosts this cannot be
    detected.
    """
    end = time.monotonic() + (_NEWS_SECONDS if host.group.nodes.count == 1 else 0)
    while not host.team.poisoned:
        fail_if_lost(host)
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True
