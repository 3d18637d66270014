"""Process sets: subsets of the ranks with their own operations."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

from pycollective import checks


class ProcessSet:
    """A subset of the ranks. Operations with `process_set=` run among them only.

    Registered by `init(process_sets=[...])` or `add_process_set`.

    Attributes:
        ranks: in ascending order; None for the global set, or one made from a communicator, while not registered.
        process_set_id: its number, 0 for the global one; None while not registered.
        mpi_comm: the mpi4py communicator that it was made from, if any.
    """

    process_set_id: int | None = None
    ranks: list[int] | None = None
    mpi_comm: Any = None
    _me = -1

    def __init__(self, ranks_or_comm: Sequence[int] | Any) -> None:
        """Args: ranks_or_comm: the ranks, or an mpi4py communicator of them.

        Raises:
            ValueError: something else, duplicate ranks, or no ranks.
        """
        if hasattr(ranks_or_comm, "Get_group"):
            self.mpi_comm = ranks_or_comm
            return
        try:
            ranks = sorted(map(operator.index, ranks_or_comm))
        except Exception:
            raise ValueError(
                f"a process set must be made from ranks or an mpi4py communicator, not {checks.shown(ranks_or_comm)}"
            ) from None
        if not ranks or len(set(ranks)) != len(ranks):
            raise ValueError(f"a process set must have at least one rank and no duplicates, not {ranks}")
        self.ranks = ranks

    def ranks_in(self, everyone: Any, world_ranks: Sequence[int]) -> list[int]:
        """Its ranks, in init()'s numbering. Called by init() and add_process_set.

        Args:
            everyone: the mpi4py communicator passed to init(), if any.
            world_ranks: for each rank of init(): its rank in the job, i.e. in MPI's COMM_WORLD.

        Raises:
            ValueError: the set's communicator has ranks that are not in init()'s.
        """
        if self.mpi_comm is None:
            return self.ranks or []
        ranks = _ranks_of(self.mpi_comm, everyone, len(world_ranks))
        if everyone is None:
            ranks = [world_ranks.index(rank) if rank in world_ranks else -1 for rank in ranks]
        if min(ranks) < 0:
            raise ValueError("a process set's communicator has ranks that are not in init()'s")
        return sorted(ranks)

    def attach(self, number: int, ranks: Iterable[int], me: int) -> None:
        """Called by init() and add_process_set. `me`: this process's rank."""
        self.process_set_id, self.ranks, self._me = number, list(ranks), me

    def detach(self) -> None:
        """Called by shutdown() and remove_process_set."""
        self.process_set_id = None

    def size(self) -> int | None:
        """The number of ranks; None while not registered."""
        return None if self.process_set_id is None or self.ranks is None else len(self.ranks)

    def rank(self) -> int | None:
        """This process's rank in the set; None while not registered.

        Raises:
            ValueError: this process is not in it.
        """
        if self.process_set_id is None or self.ranks is None:
            return None
        if self._me not in self.ranks:
            raise ValueError(f"rank {self._me} is not part of {self}")
        return self.ranks.index(self._me)

    def included(self) -> bool | None:
        """Return whether this process is in the set; None while not registered."""
        if self.process_set_id is None or self.ranks is None:
            return None
        return self._me in self.ranks

    @property
    def counted_as(self) -> tuple[int, ...] | int | None:
        """The key under which a rank counts what it has done in this set: its members have counted the same.

        Not the number, which another set may receive once this one has been removed.
        """
        return tuple(self.ranks or ()) if self.process_set_id else self.process_set_id

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, mpi_comm={self.mpi_comm})"

    __repr__ = __str__


def _ranks_of(comm: Any, everyone: Any, size: int) -> list[int]:
    """The ranks of an mpi4py communicator in another, by default COMM_WORLD; negative for ranks not in that.

    Raises:
        ValueError: the job was not started by MPI, so its ranks are different.
    """
    from mpi4py import MPI

    parent = everyone or MPI.COMM_WORLD
    if parent.Get_size() < size:
        raise ValueError(
            f"a process set made of an mpi4py communicator needs a job started by mpirun: MPI has {parent.Get_size()} "
            f"of the {size} ranks"
        )
    group = comm.Get_group()
    ranks: list[int] = MPI.Group.Translate_ranks(group, list(range(group.Get_size())), parent.Get_group())
    return [-1 if rank == MPI.UNDEFINED else rank for rank in ranks]


class _GlobalProcessSet(ProcessSet):
    """All ranks."""

    def __init__(self) -> None:
        pass

    def detach(self) -> None:
        super().detach()
        self.ranks = self.mpi_comm = None


global_process_set: ProcessSet = _GlobalProcessSet()
"""All ranks; the default of every operation."""
