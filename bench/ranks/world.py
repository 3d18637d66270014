"""The processes that measure together: their ranks, their barrier, and how they agree on a number.

None of this is inside a timed block, except that a block begins right after ``barrier``.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np

__all__ = ["MpiWorld", "OwnWorld", "World", "first_problem", "first_rank", "open_world", "ranks_started"]

_MPI_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_SIZES = ("PYCOLLECTIVE_SIZE", *_MPI_SIZES, "WORLD_SIZE")


class World(Protocol):
    """``rank`` and ``size``, a barrier, and an all-gather of small Python objects."""

    rank: int
    size: int

    def barrier(self) -> None: ...

    def share(self, value: Any) -> list[Any]:
        """Every rank's value, in rank order, on every rank (pickled: for small objects outside the timing)."""


class MpiWorld:
    """Ranks started by mpirun."""

    def __init__(self, mpi: Any) -> None:
        self._comm = mpi.COMM_WORLD.Dup()
        self.rank, self.size = int(self._comm.rank), int(self._comm.size)

    def barrier(self) -> None:
        self._comm.Barrier()

    def share(self, value: Any) -> list[Any]:
        return list(self._comm.allgather(value))


class OwnWorld:
    """Ranks started by ``pycollective run`` (or one process alone), with our own communicator."""

    def __init__(self, comm: Any) -> None:
        self._comm = comm
        self.rank, self.size = int(comm.rank), int(comm.size)

    def barrier(self) -> None:
        self._comm.barrier()

    def share(self, value: Any) -> list[Any]:
        data = np.frombuffer(pickle.dumps(value), np.uint8)
        counts = [int(n) for n in self._comm.allgather(np.array([data.size], np.int64))]
        flat = np.asarray(self._comm.allgatherv(data.copy(), counts))
        ends = np.cumsum(counts)
        return [pickle.loads(flat[end - n : end].tobytes()) for n, end in zip(counts, ends, strict=True)]


def first_problem(world: World, problem: str) -> str:
    """What the lowest rank with a problem reports; empty if no rank has one. Collective."""
    return next(filter(None, world.share(problem)), "")


def ranks_started(environment: Mapping[str, str] = os.environ) -> int:
    """The number of ranks that a launcher has started with this process; 0 without a launcher."""
    for name in _SIZES:
        if environment.get(name, "").isdigit():
            return int(environment[name])
    tasks = environment.get("SLURM_STEP_NUM_TASKS", "")
    return int(tasks) if tasks.isdigit() and int(tasks) > 1 else 0  # one may be an interactive shell


def first_rank(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether this process is rank 0, or alone; works before any setup."""
    names = ("PYCOLLECTIVE_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK", "SLURM_PROCID")
    return next((environment[name] for name in names if name in environment), "0") == "0"


@contextlib.contextmanager
def open_world(environment: Mapping[str, str] = os.environ) -> Iterator[World]:
    """The world that the launcher made: MPI's for mpirun, otherwise our own."""
    if "PYCOLLECTIVE_SIZE" not in environment and any(name in environment for name in _MPI_SIZES):
        yield MpiWorld(importlib.import_module("mpi4py.MPI"))
        return
    comm = importlib.import_module("pycollective").init()
    try:
        yield OwnWorld(comm)
    finally:
        comm.free()
