"""What is measured: a call on a type and a count, and what its time is worth as bandwidth."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pycollective import graphs
from pycollective.cli.commands import choose
from pycollective.cli.units import KIB, format_size, parse_size, parse_sizes
from pycollective.dtypes import DTYPES
from pycollective.graphs import Graph
from pycollective.schedule.collectives import CALLS, COLLECTIVES, Collective

__all__ = [
    "BARRIER",
    "GRAPHS",
    "KIB",
    "MEASURED",
    "SENDRECV",
    "Case",
    "case_of",
    "element_size",
    "format_size",
    "pair_partner",
    "parse_size",
    "parse_sizes",
    "sweep_cases",
]

SENDRECV, BARRIER = "sendrecv", "barrier"
MEASURED: dict[str, Collective] = {
    **COLLECTIVES,
    SENDRECV: Collective(SENDRECV),  # a message there and one back, between the ranks 0 and 1, 2 and 3, ...
    BARRIER: CALLS[BARRIER],
}
"""The calls that can be measured, by name: every collective of topologies, messages, and the barrier."""


GRAPHS = {graph.name: graph for graph in (graphs.ring, graphs.exponential, graphs.complete)}
"""The graphs of weighted collectives, by name; a sweep takes the first."""


def pair_partner(rank: int, ranks: int) -> int | None:
    """The rank with which a rank exchanges messages in ``sendrecv``; None for the last of an odd number."""
    partner = rank ^ 1
    return partner if partner < ranks else None


def element_size(dtype: str) -> int:
    """Bytes of one element of the named type; ValueError with the nearest name for one that does not exist."""
    return DTYPES[choose(dtype, DTYPES, "element type")].itemsize


@dataclass(frozen=True)
class Case:
    """One call on ``ranks`` ranks.

    ``count`` is in elements and, as in nccl-tests, the smaller of the two buffers: what each rank
    contributes to an allgather or receives from a reduce_scatter; 0 for a barrier.  ``root`` is -1 where the
    collective has none.  ``op`` is the operator, the graph's name in GRAPHS if weighted, or "none".
    """

    collective: str
    dtype: str
    op: str
    count: int
    ranks: int
    root: int = -1

    def __post_init__(self) -> None:
        if self.collective not in MEASURED:
            raise ValueError(f"unknown collective {self.collective!r}; there are {', '.join(MEASURED)}")
        element_size(self.dtype)

    @property
    def kind(self) -> Collective:
        return MEASURED[self.collective]

    @property
    def graph(self) -> Graph:
        """Graph of a weighted collective."""
        return GRAPHS[self.op]

    @property
    def send_count(self) -> int:
        """Elements of the send buffer."""
        return self.count * (1 if self.kind.packed_input else self._blocks)

    @property
    def recv_count(self) -> int:
        """Elements of the receive buffer."""
        return self.count * (1 if self.kind.packed_output else self._blocks)

    @property
    def _blocks(self) -> int:
        """Parts of `count` elements in a buffer that is whole."""
        return self.ranks if self.kind.in_blocks else 1

    @property
    def nbytes(self) -> int:
        """The size column: bytes of the larger buffer."""
        return max(self.send_count, self.recv_count) * element_size(self.dtype)

    def algbw(self, seconds: float) -> float:
        """Size over time, in GB/s (1e9 bytes)."""
        return self.nbytes / seconds / 1e9 if seconds > 0 else 0.0

    def busbw(self, seconds: float) -> float:
        """algbw times the factor of the collective, in GB/s: comparable between rank counts."""
        factor = 2.0 if self.collective == SENDRECV else self.kind.busbw_factor(self.ranks)  # there and back
        return self.algbw(seconds) * factor


def sweep_cases(collective: str, dtype: str, op: str, sizes: Iterable[int], ranks: int, root: int = 0) -> list[Case]:
    """The cases nearest to the sizes: at least one element a rank, equal ones once, sizes ascending.

    The barrier has one case, without a size.
    """
    kind = MEASURED.get(collective)
    if kind is None:
        raise ValueError(f"unknown collective {collective!r}; there are {', '.join(MEASURED)}")
    if collective == BARRIER:
        return [Case(collective, dtype, "none", 0, ranks)]
    shares = ranks if kind.in_blocks else 1
    width = element_size(dtype)
    counts = sorted({max(1, size // width // shares) for size in sizes})
    root = root if kind.rooted else -1
    word = op if kind.reduces else next(iter(GRAPHS)) if kind.weighted else "none"
    return [Case(collective, dtype, word, count, ranks, root) for count in counts]


def case_of(collective: str, size: int, ranks: int, dtype: str = "float32") -> Case:
    """The case nearest to one size: a sum where the collective reduces, with root 0 where it has one."""
    [case] = sweep_cases(collective, dtype, "sum", [size], ranks)
    return case
