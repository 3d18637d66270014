"""Process sets: parts of the ranks that have operations of their own."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any


class ProcessSet:
    """Some of the ranks. Operations with `process_set=` run among them alone.

    Registered by `init(process_sets=[...])` or `add_process_set`.

    Attributes:
        ranks: in ascending order; None for the global set before init().
        process_set_id: its number, 0 for the global one; None while it is not registered.
        mpi_comm: the mpi4py communicator that it was made of, if it was.
    """

    process_set_id: int | None = None
    ranks: list[int] | None = None
    mpi_comm: Any = None

    def __init__(self, ranks_or_comm: Sequence[int] | Any) -> None:
        """Args: ranks_or_comm: the ranks, or an mpi4py communicator of them.

        Raises:
            ValueError: something else, a rank twice, or none.
        """
        if hasattr(ranks_or_comm, "Get_group"):
            self.mpi_comm = ranks_or_comm
            self.ranks = _ranks_of(ranks_or_comm)
            return
        try:
            ranks = sorted(map(operator.index, ranks_or_comm))
        except TypeError:
            raise ValueError(
                f"a process set is made of ranks or an mpi4py communicator, not {ranks_or_comm!r}"
            ) from None
        if not ranks or len(set(ranks)) != len(ranks):
            raise ValueError(f"a process set is made of different ranks, at least one; not {ranks}")
        self.ranks = ranks

    def ranks_in(self, everybody: Any) -> list[int]:
        """The ranks among those of `everybody`, an mpi4py communicator; None: COMM_WORLD. Called by init()."""
        if self.mpi_comm is not None:
            self.ranks = _ranks_of(self.mpi_comm, everybody)
        return self.ranks or []

    def attach(self, number: int, ranks: Iterable[int]) -> None:
        """Called by init() and add_process_set."""
        self.process_set_id, self.ranks = number, list(ranks)

    def detach(self) -> None:
        """Called by shutdown() and remove_process_set."""
        self.process_set_id = None

    def size(self) -> int | None:
        """How many ranks it has; None while it is not registered."""
        return None if self.process_set_id is None or self.ranks is None else len(self.ranks)

    def rank(self) -> int | None:
        """This process's number in the set; None while it is not registered.

        Raises:
            ValueError: this process is not in it.
        """
        from pycollective.torch.basics import world

        if self.process_set_id is None or self.ranks is None:
            return None
        me = world().comm.rank
        if me not in self.ranks:
            raise ValueError(f"rank {me} is not part of {self}")
        return self.ranks.index(me)

    def included(self) -> bool | None:
        """Whether this process is in it; None while it is not registered."""
        from pycollective.torch.basics import world

        if self.process_set_id is None or self.ranks is None:
            return None
        return world().comm.rank in self.ranks

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, mpi_comm={self.mpi_comm})"

    __repr__ = __str__


def _ranks_of(comm: Any, everybody: Any = None) -> list[int]:
    """The ranks of an mpi4py communicator in another, by default COMM_WORLD."""
    from mpi4py import MPI

    group, whole = comm.Get_group(), (everybody or MPI.COMM_WORLD).Get_group()
    ranks: list[int] = MPI.Group.Translate_ranks(group, list(range(group.Get_size())), whole)
    if MPI.UNDEFINED in ranks:
        raise ValueError("a process set's communicator has ranks that init()'s has not")
    return sorted(ranks)


class _GlobalProcessSet(ProcessSet):
    """All ranks."""

    def __init__(self) -> None:
        pass

    def detach(self) -> None:
        super().detach()
        self.ranks = self.mpi_comm = None


global_process_set: ProcessSet = _GlobalProcessSet()
"""All ranks; the default of every operation."""
