"""What each collective starts from and must end with: one table, read by the language, compiler and verifier.

A *place* is a pair (rank, chunk). For each collective the table says which places hold a contribution at the
start and which must hold a result at the end. The result is the same rule everywhere: every place that ends
with something ends with all the contributions to its chunk, each exactly once (for a broadcast there is only one).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pycollective import checks
from pycollective.errors import ProgramError

PlaceRule = Callable[[int, int, int, int], bool]
"""(rank, chunk, size, root) -> whether the place holds something."""


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective.

    Attributes:
        name: its name in a topology and in the communicator.
        starts: which places hold a contribution when the call begins (the input buffers).
        ends: which places hold a result when the call ends (the output buffers).
        reduces: contributions are combined by an operator; prescale, postscale and averaging apply.
        rooted: it takes a root.
        split: how the buffer is cut: as the program likes, one chunk a rank, or one chunk a pair of ranks.
    """

    name: str
    starts: PlaceRule
    ends: PlaceRule
    reduces: bool = False
    rooted: bool = False
    split: Literal["free", "ranks", "pairs"] = "free"

    def required_chunks(self, size: int) -> int | None:
        """The number of chunks that a program must use on `size` ranks; None where it is free."""
        size = checks.integer(size, "size", 0)
        return {"free": None, "ranks": size, "pairs": size * size}[self.split]

    def busbw_factor(self, size: int) -> float:
        """busbw over algbw on `size` ranks, as in nccl-tests (doc/PERFORMANCE.md there).

        With it rates at different rank counts compare: it is what the slowest link of the best algorithm would carry.
        """
        size = checks.integer(size, "size", 1)
        if self.split == "free":
            return 2 * (size - 1) / size if self.name == "allreduce" else 1.0
        return (size - 1) / size


def _everywhere(rank: int, chunk: int, size: int, root: int) -> bool:
    return True


def _at_root(rank: int, chunk: int, size: int, root: int) -> bool:
    return rank == root


def _own(rank: int, chunk: int, size: int, root: int) -> bool:
    return rank == chunk


def _sent_by(rank: int, chunk: int, size: int, root: int) -> bool:
    return rank == chunk // size


def _meant_for(rank: int, chunk: int, size: int, root: int) -> bool:
    return rank == chunk % size


COLLECTIVES: dict[str, Collective] = {
    collective.name: collective
    for collective in (
        Collective("allreduce", _everywhere, _everywhere, reduces=True),
        Collective("broadcast", _at_root, _everywhere, rooted=True),
        Collective("reduce", _everywhere, _at_root, reduces=True, rooted=True),
        Collective("reduce_scatter", _everywhere, _own, reduces=True, split="ranks"),
        Collective("allgather", _own, _everywhere, split="ranks"),
        Collective("gather", _own, _at_root, rooted=True, split="ranks"),
        Collective("scatter", _at_root, _own, rooted=True, split="ranks"),
        Collective("alltoall", _sent_by, _meant_for, split="pairs"),
    )
}
"""Every collective that a topology can have, by its name."""


def collective_named(name: str) -> Collective:
    """The collective of that name; ProgramError where there is none."""
    try:
        return COLLECTIVES[name]
    except (KeyError, TypeError):
        raise ProgramError(
            f"no collective is called {checks.shown(name)}; there are {', '.join(COLLECTIVES)}"
        ) from None
