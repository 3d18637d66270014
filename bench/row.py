"""A row of a result, what one candidate took for one case, and a line of a table of goals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import msgspec


def about(description: str) -> msgspec.Meta:
    """What a field of a published format contains."""
    return msgspec.Meta(description=description)


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One candidate's result. Times are medians over the rounds of the slowest rank's time per call."""

    collective: str
    library: str
    topology: Annotated[str, about("empty if the library chooses")]
    path: Annotated[str, about("memory of the arrays: windows, shared or plain")]
    ranks: int
    size: Annotated[int, about("bytes of the larger buffer")]
    count: Annotated[int, about("elements")]
    type: str
    op: Annotated[str, about("the operator, the graph of mix, or none")]
    root: Annotated[int, about("-1 if there is none")]
    in_place: bool
    time_us: float
    algbw: Annotated[float, about("GB/s, 1e9 bytes")]
    busbw: Annotated[float, about("GB/s")]
    wrong: Annotated[int | None, about("wrong elements on all ranks, over the checked calls; null if none was checked")]
    group: Annotated[int, about("rows of one group and rank count were measured interleaved")]
    repetitions: Annotated[int, about("calls of one round")]
    rounds_us: Annotated[list[float], about("an entry for each round: those of a group are pairs")]
    arrays: Annotated[str, about("numpy or torch: of our library; others get their own description of the memory")] = (
        "numpy"
    )
    p99_us: Annotated[
        float | None, about("99 % of the calls took at most this long; null if calls were not timed one by one")
    ] = None
    offsets: Annotated[list[int], about("bytes after a page boundary where input and output begin")] = []


@dataclass(frozen=True)
class Line:
    """One figure of the table."""

    row: str
    against: str  # "Open MPI", "Gloo", "the ceiling", "float32", or "" for a plain time
    goal: str
    measured: str
    met: bool | None  # None: not measured
    worst: str  # the case of the figure, with both times
    cases: dict[str, float]  # every case's median ratio, or the time in seconds

    @staticmethod
    def unmeasured(row: str, against: str, goal: str) -> Line:
        """The line of a goal for which a side is missing."""
        return Line(row, against, goal, "-", None, "", {})
