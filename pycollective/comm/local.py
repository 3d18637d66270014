"""Ranks as threads of this process: for trying things out, for tests, and for the thread sanitizer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from pycollective import _core, checks, settings
from pycollective.comm.communicator import Communicator
from pycollective.comm.nodes import Nodes
from pycollective.comm.planner import Planner
from pycollective.comm.teams import scratch_bytes, set_patience

_Result = TypeVar("_Result")
MOST_RANKS = 4096  # threads of one process: more end in errors of the system


class LocalWorld:
    """A world of `size` ranks that live as threads; each `run` makes a fresh communicator."""

    def __init__(self, size: int, device: str | int | None = None) -> None:
        self.size = checks.integer(size, "size", 1, MOST_RANKS)
        settings.warn_of_unknown(stacklevel=3)
        if device is not None:
            from pycollective.comm.cuda.virtual import require_room

            require_room(size, device)

    def run(self, function: Callable[[Communicator], _Result]) -> list[_Result]:
        """Call `function(comm)` on every rank's thread.

        Returns:
            what the calls returned, in rank order.

        Raises:
            the first exception that a rank raised, with a note naming the rank (and its attribute `failed_rank`); the
            other ranks get PeerLostError from the call they are in.
        """
        checks.function(function, "function", "a function of a communicator")
        world: _World[_Result] = _World(self.size)
        threads = [
            threading.Thread(target=world.serve, args=(rank, function), name=f"rank-{rank}")
            for rank in range(self.size)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if world.failures:
            raise world.failures[0]
        return [world.results[rank] for rank in range(self.size)]


class _World(Generic[_Result]):
    """One run: its communicators, results and failures (in the order in which they happened)."""

    def __init__(self, size: int) -> None:
        scratch, ranks = scratch_bytes(), range(size)
        segment = _core.Segment.create("local", _core.Team.segment_bytes(size, scratch))
        self.teams = [
            _core.Team(segment, rank, size, scratch, list(ranks), "local", True, Planner(rank, size)) for rank in ranks
        ]
        self.comms = []
        for rank, team in enumerate(self.teams):
            set_patience(team, size)
            nodes = Nodes(rank, (0,) * size)
            self.comms.append(Communicator(team, nodes=nodes, world_ranks=ranks, name="local", threads=True))
        self.results: dict[int, _Result] = {}
        self.failures: list[BaseException] = []

    def serve(self, rank: int, function: Callable[[Communicator], _Result]) -> None:
        kin = self.comms[rank]._kin  # what the others may wait in
        try:
            self.results[rank] = function(self.comms[rank])
            for comm in list(kin):
                comm.free()
        except BaseException as error:
            self.failures.append(error)  # list.append is atomic: the first failure stays first
            error.failed_rank = rank  # type: ignore[attr-defined]
            if hasattr(error, "add_note"):
                error.add_note(f"raised on rank {rank}")
            for comm in list(kin):
                team: Any = comm._backend
                team.report_lost(comm.rank, f"rank {rank} has failed: {type(error).__name__}: {error}")
                comm.free()


def local_world(size: int, *, device: str | int | None = None) -> LocalWorld:
    """A world of `size` ranks as threads of this process: `local_world(4).run(lambda comm: comm.rank)`.

    Args:
        size: how many ranks.
        device: a GPU ("cuda", "cuda:1" or its number) that can run so many ranks at a time, or an error now. Calls on
            arrays in its memory meet and become one launch; see docs/gpu.md.

    Raises:
        TypeError: size is no integer. ValueError: size < 1 or > MOST_RANKS. CommunicatorError: no such GPU, or no room
            on it; states why.
    """
    return LocalWorld(size, device)
