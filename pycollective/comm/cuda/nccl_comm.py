"""NCCL communicators, and the calls of `topology="nccl"` over them."""

from __future__ import annotations

import copy
import json
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pycollective import _core
from pycollective.comm.cuda.nccl import NCCL, Library, arithmetic, blocks_for, lacks, library
from pycollective.comm.cuda.planner import Planned
from pycollective.comm.cuda.request import Request, Signature, seconds
from pycollective.comm.cuda.runtime import load
from pycollective.comm.cuda.watch import SECONDS, watch
from pycollective.comm.factors import Factors
from pycollective.comm.nodes import node_key
from pycollective.comm.teams import Exchange
from pycollective.errors import CommunicatorError, Error, TimeoutError

if TYPE_CHECKING:
    from pycollective.comm.communicator import Communicator

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
        limit = seconds(None)
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
            s, x = Signature(s.row.program, "uint8", 1, None, -1, "sum", NCCL, Factors((1.0, 1.0)), 0), self._one()
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


class NcclCalls:
    """A communicator's calls with `topology="nccl"`. Made by the first of them, which is collective.

    Args:
        comm: its ranks are processes.
        device: of this rank's arrays.
    """

    def __init__(self, comm: Communicator, device: int) -> None:
        if comm._threads and comm.size > 1:
            raise CommunicatorError("topology 'nccl' is for ranks that are processes; these are threads of one")
        self._comm = weakref.ref(comm)
        self.device = device
        self._rails: dict[int, NcclRail] = {}
        self._adopted: list[tuple[NcclRail, Any]] = []
        self._failure: Error | None = None
        if isinstance(comm._backend, _core.Team):
            watch(comm, self)
        else:
            name = "pycollective-nccl-watch"
            threading.Thread(target=_serve, args=(weakref.ref(self),), name=name, daemon=True).start()

    def run(self, request: Request) -> None:
        """Put a call into its stream.

        Raises:
            MismatchError: a peer's call differs. TimeoutError, PeerLostError, CommunicatorError: poison the
            communicator, except for calls that NCCL lacks: those are refused before anything is sent.
        """
        comm = self._comm()
        assert comm is not None
        self.check()
        s = request.signature
        if s.max_channels not in self._rails and load().is_capturing(request.stream):
            raise CommunicatorError("make one call with topology='nccl' before the stream is captured")
        rail = self.meet(comm, s.max_channels)
        reason = rail.lacks(s)
        if reason is not None:
            raise CommunicatorError(f"{reason}: leave topology='nccl' out")
        note = getattr(comm._gpu, "note", None)
        if note is not None:
            note(Planned(None, s.digest(NCCL, NCCL), s.text(NCCL), NCCL))
        x = request.x.address if request.x is not None else 0
        out = request.out.address if request.out is not None else 0
        self.guard(lambda: rail.run(s, x, out, request.stream, request.timeout))

    def guard(self, action: Callable[[], None]) -> None:
        """Do something that concerns all ranks: if it fails, the communicator is poisoned."""
        try:
            action()
        except Error as error:
            self._fail(error)
            self.check()
            raise

    def meet(self, comm: Communicator, most_blocks: int) -> NcclRail:
        """Collective: NCCL's communicator for calls that may take so many blocks; made once."""
        if most_blocks not in self._rails:
            self._rails[most_blocks] = NcclRail(comm._exchange, comm.rank, comm.size, self.device, most_blocks)
        return self._rails[most_blocks]

    def adopt(self, rail: NcclRail, within: Any) -> None:
        """Look after another NCCL communicator too, and after the GPU side of the host's ranks that goes with it."""
        self._adopted.append((rail, within))

    def check(self) -> None:
        """Raise what went wrong in calls that are under way or through, if anything did."""
        comm = self._comm()
        assert comm is not None
        self.look()
        if isinstance(comm._backend, _core.Team) and comm._backend.poisoned:
            self.abort()  # or freeing this call's arrays would wait for it
            comm._backend.require_sound()
        if self._failure is not None:
            raise copy.copy(self._failure)

    def look(self) -> None:
        """Called by the watcher: find out what NCCL or the clock says, and tell the other ranks of the host."""
        if self._failure is not None:
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
        for rail in self._all():
            rail.close()
        self._rails, self._adopted = {}, []
        if self._failure is None:
            self._failure = CommunicatorError("the communicator was freed")

    @property
    def failed(self) -> bool:
        """Whether calls raise from now on."""
        return self._failure is not None

    def _fail(self, error: Error) -> None:
        comm = self._comm()
        if self._failure is not None or comm is None:
            return
        backend = comm._backend
        if isinstance(backend, _core.Team):
            if isinstance(error, TimeoutError):
                if not backend.poisoned:
                    backend.report_timeout(comm.rank, str(error))
            elif not _somebody_died(comm, backend):
                backend.give_up(str(error))
        else:
            self._failure = error
            # Before kernels give up: what they then hand to the host's other ranks must not pass for a result there.
            for _, within in self._adopted:
                within.give_up(error)
        self.abort()


def _somebody_died(comm: Communicator, backend: _core.Team) -> bool:
    """Whether a peer's end explains an error of NCCL's; then it is reported as such.

    NCCL sees a broken connection, and often before the core sees which process it was.
    """
    end = time.monotonic() + _NEWS_SECONDS
    while not backend.poisoned:
        for rank in range(comm.size):
            if rank != comm.rank and backend.gone(rank) and not backend.departed(rank):
                backend.report_lost(rank, f"the process of rank {rank} is gone")
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def _serve(calls_of: weakref.ref[NcclCalls]) -> None:
    """The watcher where ranks live on several hosts: NCCL's own report is all there is."""
    while True:
        time.sleep(SECONDS)
        calls = calls_of()
        if calls is None or calls.failed:
            return
        calls.look()
        del calls


def nccl_calls(comm: Communicator, device: int) -> NcclCalls:
    """A communicator's calls over NCCL."""
    if comm._nccl is None:
        comm._nccl = NcclCalls(comm, device)
    return comm._nccl
