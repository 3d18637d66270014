"""What is measured: a collective on a type and a count, and what its time is worth as bandwidth."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pycollective.cli.commands import choose
from pycollective.cli.units import KIB, format_size, parse_size, parse_sizes
from pycollective.dtypes import DTYPES
from pycollective.schedule import collectives as programs

__all__ = [
    "COLLECTIVES",
    "KIB",
    "Case",
    "element_size",
    "format_size",
    "parse_size",
    "parse_sizes",
    "sweep_cases",
]


@dataclass(frozen=True)
class Collective:
    """How a collective's buffers relate to its count.

    ``send`` and ``recv`` say how many times the count each rank's buffers hold (0 stands for "times the
    ranks").
    """

    send: int
    recv: int
    reduces: bool
    rooted: bool


COLLECTIVES: dict[str, Collective] = {
    "allreduce": Collective(1, 1, True, False),
    "broadcast": Collective(1, 1, False, True),
    "reduce": Collective(1, 1, True, True),
    "reduce_scatter": Collective(0, 1, True, False),
    "allgather": Collective(1, 0, False, False),
    "gather": Collective(1, 0, False, True),
    "scatter": Collective(0, 1, False, True),
    "alltoall": Collective(0, 0, False, False),
}


def element_size(dtype: str) -> int:
    """Bytes of one element of the named type; ValueError with the nearest name for one that does not exist."""
    return DTYPES[choose(dtype, DTYPES, "element type")].itemsize


@dataclass(frozen=True)
class Case:
    """One collective on ``ranks`` ranks.

    ``count`` is in elements and, as in nccl-tests, the smaller of the two buffers: what each rank
    contributes to an allgather or receives from a reduce_scatter.  ``root`` is -1 where the collective has
    none.
    """

    collective: str
    dtype: str
    op: str
    count: int
    ranks: int
    root: int = -1

    def __post_init__(self) -> None:
        if self.collective not in COLLECTIVES:
            raise ValueError(f"unknown collective {self.collective!r}; there are {', '.join(COLLECTIVES)}")
        element_size(self.dtype)

    @property
    def kind(self) -> Collective:
        return COLLECTIVES[self.collective]

    @property
    def send_count(self) -> int:
        """Elements of the send buffer."""
        return self.count * (self.kind.send or self.ranks)

    @property
    def recv_count(self) -> int:
        """Elements of the receive buffer."""
        return self.count * (self.kind.recv or self.ranks)

    @property
    def nbytes(self) -> int:
        """The size column: bytes of the larger buffer."""
        return max(self.send_count, self.recv_count) * element_size(self.dtype)

    def algbw(self, seconds: float) -> float:
        """Size over time, in GB/s (1e9 bytes)."""
        return self.nbytes / seconds / 1e9 if seconds > 0 else 0.0

    def busbw(self, seconds: float) -> float:
        """algbw times the factor of the collective, in GB/s: comparable between rank counts."""
        return self.algbw(seconds) * programs.COLLECTIVES[self.collective].busbw_factor(self.ranks)


def sweep_cases(collective: str, dtype: str, op: str, sizes: Iterable[int], ranks: int, root: int = 0) -> list[Case]:
    """The cases nearest to the sizes: at least one element a rank, equal ones once, sizes ascending."""
    kind = COLLECTIVES.get(collective)
    if kind is None:
        raise ValueError(f"unknown collective {collective!r}; there are {', '.join(COLLECTIVES)}")
    shares = ranks if 0 in (kind.send, kind.recv) else 1
    width = element_size(dtype)
    counts = sorted({max(1, size // width // shares) for size in sizes})
    root = root if kind.rooted else -1
    return [Case(collective, dtype, op if kind.reduces else "none", count, ranks, root) for count in counts]
