"""Ranks as threads of this process: for experiments, tests and the thread sanitizer."""

from __future__ import annotations

import contextlib
import ctypes
import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from pycollective import _core, checks, settings
from pycollective.comm.bootstrap.nodes import Nodes, place
from pycollective.comm.communicator import Communicator
from pycollective.comm.group import Group
from pycollective.comm.host.core_team import make_team, segment_bytes
from pycollective.comm.host.cores import are_enough, cpu_quota, usable_cores
from pycollective.comm.host.segments import scratch_bytes
from pycollective.comm.host.team import HostTeam
from pycollective.comm.tuning import accepted, offered
from pycollective.errors import PeerLostError

if TYPE_CHECKING:
    from pycollective.comm.hosts.virtual import VirtualNetwork

_Result = TypeVar("_Result")
MOST_RANKS = 4096  # threads of one process: more cause system errors
_GRACE = 2.0
"""Seconds allowed for the ranks of an interrupted run to end."""
_RETRY = 0.001
"""Seconds until a thread that could not be interrupted is tried again."""


class LocalWorld:
    """A world of `size` ranks as threads; each `run` creates a new communicator.

    Args:
        size, device, hosts: as for `local_world`.
    """

    def __init__(self, size: int, device: str | int | None = None, hosts: Sequence[int] = ()) -> None:
        self.size = checks.integer(size, "size", 1, MOST_RANKS)
        self.hosts = _checked_hosts(hosts, self.size)
        settings.warn_of_unknown(stacklevel=3)
        if device is not None:
            from pycollective.comm.cuda.virtual import require_room

            require_room(size, device)

    def run(self, function: Callable[[Communicator], _Result]) -> list[_Result]:
        """Call `function(comm)` on every rank's thread.

        An interrupt (KeyboardInterrupt in the caller) ends the ranks: those waiting for others get PeerLostError,
        those computing get SystemExit at their next Python instruction. A rank that stays in native code is left
        behind as a daemon thread, which ends when that code returns. The next `run` is not affected.

        Args:
            function: called on each rank with its communicator.

        Returns:
            the results of the calls, in rank order.

        Raises:
            TypeError: function is not callable.
            Exception: the first one that a rank raised, with a note naming the rank (and its attribute `failed_rank`);
                the other ranks get PeerLostError from the call they are in.
        """
        checks.function(function, "function", "a function of a communicator")
        world: _World[_Result] = _World(self.size, self.hosts)
        threads = [
            threading.Thread(target=world.serve, args=(rank, function), name=f"rank-{rank}", daemon=True)
            for rank in range(self.size)
        ]
        try:
            for thread in threads:
                thread.start()
            for _ in threads:  # join() before Python 3.13 treats an interrupted thread as ended
                world.ended.get()
        except BaseException:  # an interrupt, or no more threads
            world.interrupt(threads)
            raise
        for thread in threads:
            thread.join()
        if world.network is not None:
            world.network.close()
        if world.failures:
            raise world.failures[0]
        return [world.results[rank] for rank in range(self.size)]


def _interrupt(thread: threading.Thread) -> bool:
    """Raise SystemExit in a thread; False: not now, as it would leave the lock of a module that it imports locked."""
    if thread.ident is None or not thread.is_alive():  # its number may be another thread's by now
        return True
    frame = sys._current_frames().get(thread.ident)
    if frame is not None and frame.f_code.co_filename.startswith("<frozen importlib"):
        return False
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit))
    return True


class _World(Generic[_Result]):
    """One run: its communicators, results and failures (in order of occurrence)."""

    def __init__(self, size: int, hosts: tuple[int, ...]) -> None:
        ranks, tuning = range(size), accepted(offered())
        self.groups = [Group(Nodes(rank, hosts), tuple(ranks), "local", True, tuning=tuning) for rank in ranks]
        own_cores = are_enough([usable_cores()] * size, cpu_quota())
        self.network: VirtualNetwork | None = None
        if max(hosts) == 0:
            scratch = scratch_bytes()
            segment = _core.Segment.create("local", segment_bytes(size, scratch, threads=True))
            backends = [HostTeam(make_team(segment, group, scratch), group, own_cores) for group in self.groups]
        else:
            from pycollective.comm.hosts.virtual import VirtualNetwork

            self.network = VirtualNetwork(hosts)
            backends = self.network.backends(self.groups, own_cores)
        self.comms = [Communicator(backend) for backend in backends]
        self.results: dict[int, _Result] = {}
        self.failures: list[BaseException] = []
        self.ended: queue.SimpleQueue[int] = queue.SimpleQueue()  # ranks, as they end
        self.interrupted = False

    def serve(self, rank: int, function: Callable[[Communicator], _Result]) -> None:
        """A rank's thread."""
        try:
            if not self.interrupted:  # while this thread was being started, it could not be told
                self._serve(rank, function)
        finally:
            self.ended.put(rank)

    def interrupt(self, threads: list[threading.Thread]) -> None:
        """End the ranks that still run, and wait briefly for them."""
        self.interrupted = True
        for group in self.groups:
            for comm in _all_of(group):
                comm.backend.fail(PeerLostError("the run was interrupted", comm.rank))
        deadline = time.monotonic() + _GRACE
        left, untold = len(threads), threads
        while left > 0 and (now := time.monotonic()) < deadline:
            untold = [thread for thread in untold if not _interrupt(thread)]
            with contextlib.suppress(queue.Empty):
                self.ended.get(timeout=min(deadline - now, _RETRY if untold else _GRACE))
                left -= 1

    def _serve(self, rank: int, function: Callable[[Communicator], _Result]) -> None:
        own = self.groups[rank].relatives  # in which the others may wait
        try:
            self.results[rank] = function(self.comms[rank])
            for comm in list(own):
                comm.free()
        except BaseException as error:
            self.failures.append(error)  # list.append is atomic: the first failure stays first
            error.failed_rank = rank  # type: ignore[attr-defined]
            if hasattr(error, "add_note"):
                error.add_note(f"raised on rank {rank}")
            for comm in list(own):
                text = f"rank {rank} has failed: {type(error).__name__}: {error}"
                comm.backend.fail(PeerLostError(text, comm.rank))
                comm.free()


def _checked_hosts(hosts: Sequence[int], size: int) -> tuple[int, ...]:
    """The host of every rank, numbered by first appearance."""
    given = checks.integers(hosts, "hosts") or [0] * size
    if len(given) != size:
        raise ValueError(f"hosts: one number for each of {size} ranks, not {len(given)}")
    return place(given, 0).of


def _all_of(group: Group) -> list[Communicator]:
    """A rank's communicators; its thread may be creating more."""
    while True:
        try:
            return list(group.relatives)
        except RuntimeError:  # the set changed meanwhile
            time.sleep(0)


def local_world(size: int, *, device: str | int | None = None, hosts: Sequence[int] = ()) -> LocalWorld:
    """A world of `size` ranks as threads of this process: `local_world(4).run(lambda comm: comm.rank)`.

    Args:
        size: how many ranks.
        device: a GPU ("cuda", "cuda:1" or its number) that can run `size` ranks at a time, else an error now. Calls on
            arrays in its memory are combined into one launch; see docs/gpu.md.
        hosts: virtual hosts: for each rank the number of its host. Ranks of different ones share no memory: they
            exchange messages, as on different machines. Default: one host.

    Returns:
        a LocalWorld; its `run(function)` calls function(comm) on every rank's thread.

    Raises:
        TypeError: size is not an integer.
        ValueError: size < 1 or > MOST_RANKS; hosts does not have `size` numbers.
        CommunicatorError: no such GPU, or no room on it (states why).
    """
    return LocalWorld(size, device, hosts)
