"""NCCL communicators, and the calls of `topology="nccl"` over them."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from pycollective import _core
from pycollective.comm.backend import HostBackend
from pycollective.comm.bootstrap.nodes import node_key
from pycollective.comm.cuda.nccl import NCCL, Library, arithmetic, blocks_for, lacks, library
from pycollective.comm.cuda.planner import Planned
from pycollective.comm.cuda.runtime import load
from pycollective.comm.cuda.signature import UNSCALED, Signature, sign
from pycollective.comm.cuda.watch import watch
from pycollective.comm.host.segments import Exchange
from pycollective.comm.request import CallRequest
from pycollective.errors import CommunicatorError, Error, PeerLostError, TimeoutError

_CLOSING_SECONDS = 5.0
_NEWS_SECONDS = 0.5


class NcclRail:
    """One NCCL communicator. Collective.

    Args:
        exchange: allgather of bytes among the ranks; used twice, also where something fails.
        rank, size: this rank's number, and how many there are.
        device: the GPU's number.
        most_blocks: thread blocks that NCCL may take; 0 for as many as it likes.

    Raises:
        CommunicatorError: on every rank, if one has no NCCL, another version, or cannot meet the others; says which.
    """

    def __init__(self, exchange: Exchange, rank: int, size: int, device: int, most_blocks: int = 0) -> None:
        self.rank, self.size, self.device = rank, size, device
        self._lock = threading.Lock()
        self._flying: deque[tuple[Any, float, str]] = deque()
        self._comm: Any = None
        self._ones: Any = None
        said = [json.loads(text) for text in exchange(json.dumps(self._introduce(rank, device)).encode())]
        problem = _first_problem(said)
        if not problem:
            try:
                self._meet(said, most_blocks)
            except CommunicatorError as error:
                problem = f"rank {rank}: {error}"
        problems = [text.decode() for text in exchange(problem.encode()) if text]
        if problems:
            self.abort()
            raise CommunicatorError(f"no NCCL communicator: {problems[0]}")

    def _introduce(self, rank: int, device: int) -> dict[str, Any]:
        """What the other ranks must know of this one."""
        told: dict[str, Any] = {"problem": "", "version": 0, "id": "", "gpu": ""}
        try:
            self.library: Library = library()
            told["version"] = self.library.version
            told["gpu"] = node_key().hex() + load().properties(device)["uuid"]
            told["id"] = self.library.handle.unique_id().hex() if rank == 0 else ""
        except (CommunicatorError, ImportError) as error:
            told["problem"] = str(error)
        return told

    def _meet(self, said: Sequence[dict[str, Any]], most_blocks: int) -> None:
        cuda = load()
        ranks_here = [told["gpu"] for told in said].count(said[self.rank]["gpu"])
        properties = cuda.properties(self.device)
        self.capability: tuple[int, int] = tuple(properties["compute_capability"])
        blocks = blocks_for(ranks_here, properties["multiprocessors"], self.library.version, most_blocks)
        identity = bytes.fromhex(said[0]["id"])
        self._comm = cuda.NcclComm(self.library.handle, identity, self.size, self.rank, self.device, blocks)
        limit = _core.timeout_of(None)
        if not self._comm.settle(limit):
            raise CommunicatorError(f"not all ranks have come within {limit:g} s")

    def lacks(self, signature: Signature) -> str | None:
        """Why NCCL cannot make a call; None if it can."""
        return lacks(signature, self.library.version, self.capability)

    def run(self, s: Signature, x: int, out: int, stream: int, timeout: float) -> None:
        """Put a collective into a stream.

        Args:
            s: which; its root and counts are in this communicator's ranks.
            x, out: addresses; 0 where there is none. May be the same.
            stream: its handle.
            timeout: seconds for the peers to come; counted from now also for what happens in the stream.

        Raises:
            CommunicatorError: NCCL lacks it, or reports an error. TimeoutError: a peer has not come.
        """
        if s.row.program != s.collective:  # a barrier
            s, x = Signature(s.row.program, "uint8", 1, None, -1, "sum", NCCL, UNSCALED, 0), self._one()
            out = x
        reason = self.lacks(s)
        if reason is not None:
            raise CommunicatorError(f"{reason}: leave topology='nccl' out")
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
            raise TimeoutError(f"NCCL's other ranks have not come to {s.text(NCCL)} within {timeout:g} s")
        self._note(stream, end, s)

    def _one(self) -> int:
        """Memory of one byte, for barriers."""
        if self._ones is None:
            self._ones = load().allocate_plain(self.device, 16)
        return int(self._ones.address)

    def _note(self, stream: int, end: float, s: Signature) -> None:
        """Remember when a call must be through. One that is being captured has no such time."""
        cuda = load()
        if cuda.is_capturing(stream):
            return
        while self._flying and self._flying[0][0].done():
            self._flying.popleft()
        event = cuda.Event(self.device)
        event.record(stream)
        self._flying.append((event, end, s.text(NCCL)))

    def failure(self) -> Error | None:
        """What has gone wrong in calls under way: NCCL's own report, or one that is late. Does not wait."""
        comm = self._comm
        if comm is None:
            return None
        text = comm.failure()
        if text is not None:
            return CommunicatorError(text)
        flying = list(self._flying)
        now = time.monotonic()
        for event, end, what in flying:
            if now > end and not event.done():
                return TimeoutError(f"{what} has not come through by its deadline: a rank has not made the call")
        return None

    def abort(self) -> None:
        """Let the kernels in flight give up. May be called from any thread."""
        comm = self._comm
        if comm is not None:
            comm.abort()

    def close(self) -> None:
        """Finish what is under way, with the other ranks' help; aborts where a peer does not answer."""
        with self._lock:
            comm, self._comm = self._comm, None
        if comm is not None:
            comm.close(_CLOSING_SECONDS)
        self._flying.clear()


def _first_problem(said: Sequence[dict[str, Any]]) -> str:
    """What keeps the ranks from meeting; the same on all of them."""
    for rank, told in enumerate(said):
        if told["problem"]:
            return f"rank {rank}: {told['problem']}"
        if told["version"] != said[0]["version"]:
            return (
                f"rank 0 has NCCL version {said[0]['version']}, rank {rank} {told['version']}: all ranks need the same"
            )
    return ""


class NcclTeam:
    """A communicator's calls with `topology="nccl"`. A Backend. Made by the first of them, which is collective.

    Args:
        host: the communicator's backend, whose ranks are processes.
        device: of this rank's arrays.
        note: compares a call with the peers', where they share memory.
    """

    def __init__(self, host: HostBackend, device: int, note: Callable[[Planned], None] | None = None) -> None:
        if host.group.threads and host.group.size > 1:
            raise CommunicatorError("topology 'nccl' is for ranks that are processes; these are threads of one")
        self._host, self.device, self._note = host, device, note
        self._rails: dict[int, NcclRail] = {}
        self._adopted: list[tuple[NcclRail, Any]] = []
        self._closed = False
        watch(host, self)

    def run(self, request: CallRequest) -> None:
        """Put a call into its stream.

        Raises:
            MismatchError: a peer's call differs. TimeoutError, PeerLostError, CommunicatorError: poison the
            communicator, except for calls that NCCL lacks: those are refused before anything is sent.
        """
        self.check()
        s = sign(request)
        if s.max_channels not in self._rails and load().is_capturing(request.stream):
            raise CommunicatorError("make one call with topology='nccl' before the stream is captured")
        rail = self.meet(s.max_channels)
        reason = rail.lacks(s)
        if reason is not None:
            raise CommunicatorError(f"{reason}: leave topology='nccl' out")
        if self._note is not None:
            self._note(Planned(None, s.digest(NCCL, NCCL), s.text(NCCL), NCCL))
        x = request.x.address if request.x is not None else 0
        out = request.out.address if request.out is not None else 0
        self.guard(lambda: rail.run(s, x, out, request.stream, _core.timeout_of(request.timeout)))

    def guard(self, action: Callable[[], None]) -> None:
        """Do something that concerns all ranks: if it fails, the communicator is poisoned."""
        try:
            action()
        except Error as error:
            self._fail(error)
            self.check()
            raise

    def meet(self, most_blocks: int) -> NcclRail:
        """Collective: NCCL's communicator for calls that may take so many blocks; made once."""
        if most_blocks not in self._rails:
            group = self._host.group
            self._rails[most_blocks] = NcclRail(self._host.exchange, group.rank, group.size, self.device, most_blocks)
        return self._rails[most_blocks]

    def adopt(self, rail: NcclRail, within: Any) -> None:
        """Look after another NCCL communicator too, and after the GPU side of the host's ranks that goes with it."""
        self._adopted.append((rail, within))

    def check(self) -> None:
        """Raise what went wrong in calls that are under way or have completed, if anything did."""
        if self._closed:
            raise CommunicatorError("the communicator was freed")
        self.look()
        if self._host.poisoned:
            self.abort()  # or freeing this call's arrays would wait for it
            self._host.check()

    def look(self) -> None:
        """Called by the watcher: find out what NCCL or the clock says, and tell the other ranks of the host."""
        if self._closed or self._host.poisoned:
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
        """Let the kernels in flight give up."""
        for rail in self._all():
            rail.abort()
        for _, within in self._adopted:
            within.abort()

    def _all(self) -> list[NcclRail]:
        return [*self._rails.values(), *(rail for rail, _ in self._adopted)]

    def close(self) -> None:
        """The communicator was freed."""
        self._closed = True
        for rail in self._all():
            rail.close()
        self._rails, self._adopted = {}, []

    def _fail(self, error: Error) -> None:
        host = self._host
        if not host.poisoned and (isinstance(error, TimeoutError) or not _died(host)):
            host.fail(error, host.group.rank)
            # Before kernels give up: what they then hand to the host's other ranks must not pass for a result there.
            for _, within in self._adopted:
                within.give_up(error)
        self.abort()


def _died(host: HostBackend) -> bool:
    """Whether a peer's end explains an error of NCCL's; then it is reported as such.

    NCCL sees a broken connection, and often before the core sees which process it was. Between hosts there is nothing
    to see.
    """
    end = time.monotonic() + (_NEWS_SECONDS if host.group.nodes.count == 1 else 0)
    while not host.poisoned:
        lost = host.lost_peer()
        if lost is not None:
            host.fail(PeerLostError(f"the process of rank {lost} is gone", lost))
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True
