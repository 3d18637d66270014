"""Numbers among the arguments of a call. The core reads plain ints and floats itself, and asks here for others."""

from __future__ import annotations

from operator import index
from typing import Any

from pycollective import checks
from pycollective.comm.group import Group

_MOST = (1 << 31) - 1  # largest rank number in the core
_INT64 = -(1 << 63), (1 << 63) - 1


def rank_number(rank: Any, name: str) -> int:
    """The number of a rank; its range is checked by the call."""
    return rank if type(rank) is int and -_MOST <= rank <= _MOST else checks.integer(rank, name, -_MOST, _MOST)


def peer_number(rank: Any, name: str, group: Group) -> int:
    """The number of another rank."""
    number = rank_number(rank, name)
    if number == group.rank:
        raise ValueError(f"{name} {number} is this rank itself, not another rank: copy the array instead")
    if not 0 <= number < group.size:
        raise ValueError(f"{name} {number} is not another rank of this communicator of {group.size}")
    return number


def row_counts(counts: Any, name: str, size: int) -> list[int]:
    """One number for each rank, none below 0."""
    try:
        found = [index(count) for count in counts]
        if len(found) == size and min(found) >= 0:
            return found
    except Exception:  # reported below
        pass
    return checks.integers(counts, name, 0, count=size)


def step_number(step: Any) -> int:
    """The step of a weighted collective."""
    return checks.integer(step, "step", 0, _MOST)


def factor(given: Any, name: str) -> float:
    """An omitted factor is 1; infinite ones and NaN follow IEEE arithmetic."""
    if given is None:
        return 1.0
    return given if type(given) is float else checks.number(given, name, finite=False, nan=True)


def with_match(note: str, match: Any) -> str:
    """A call's note, with the option `match`: the ranks compare both."""
    if match is None:
        return note
    what = f"match={match if type(match) is str else checks.integer(match, 'match', *_INT64)!r}"
    return f"{note}, {what}" if note else what
