"""The numbers of ranks that a topology supports, as `@topology(..., ranks=...)` declares them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

from pycollective import checks
from pycollective.errors import TopologyError
from pycollective.names import meant, unannotated

_SEARCH = 4096
"""Search range for the nearest supported counts."""


@dataclass(frozen=True)
class Multiple:
    """Multiples of a number, or of the topology's parameter of that name."""

    of: int | str

    def takes(self, topology: Any, size: int) -> bool:
        return size % self._number(topology) == 0

    def words(self, topology: Any) -> str:
        name = f" ({self.of})" if isinstance(self.of, str) else ""
        return f"a multiple of {self._number(topology)} ranks{name}"

    def check(self, name: str, cls: type) -> None:
        """Raise TopologyError if the class of the topology `name` has no such parameter."""
        parameters = [field.name for field in fields(cls)]
        if isinstance(self.of, str) and self.of not in parameters:
            there = f"it has {', '.join(parameters)}" if parameters else "it has none"
            raise TopologyError(
                f"topology {name!r}: multiple_of({self.of!r}) names none of its parameters"
                f"{meant(self.of, parameters)} ({there}{unannotated(cls, self.of)})"
            )

    def _number(self, topology: Any) -> int:
        if isinstance(self.of, int):
            return self.of
        return checks.integer(getattr(topology, self.of, None), self.of, 1)


@dataclass(frozen=True)
class _Listed:
    """Listed numbers."""

    counts: tuple[int, ...]

    def takes(self, topology: Any, size: int) -> bool:
        return size in self.counts

    def words(self, topology: Any) -> str:
        *most, last = map(str, self.counts)
        return f"{', '.join(most)} or {last} ranks" if most else f"{last} rank{'s' if last != '1' else ''}"


@dataclass(frozen=True)
class _Function:
    """Numbers accepted by a user's function."""

    function: Callable[..., object]
    with_topology: bool

    def takes(self, topology: Any, size: int) -> bool:
        try:
            return bool(self.function(topology, size) if self.with_topology else self.function(size))
        except Exception as error:  # a user's function may raise anything
            raise TopologyError(f"the function given as ranks= raised {type(error).__name__}: {error}") from error

    def words(self, topology: Any) -> str:
        doc = (self.function.__doc__ or "").strip().partition("\n")[0].rstrip(".")
        return doc or "other numbers of ranks"


RankCounts: TypeAlias = Multiple | _Listed | _Function
"""A rule for the number of ranks: whether a topology, an instance whose parameters may matter, `takes` a number of
them, and the rule in words, to follow "takes": "a multiple of 4 ranks"."""


def multiple_of(number: int | str) -> Multiple:
    """Accept, as `ranks=`, the multiples of a number, or of the topology's parameter of that name.

    Raises:
        TypeError: neither an integer nor a string.
        ValueError: a number below 1.
    """
    return Multiple(number if isinstance(number, str) else checks.integer(number, "multiple_of", 1))


def declared(ranks: object) -> RankCounts | None:
    """The rule for `ranks=` of a topology; None: any number.

    Raises:
        TypeError, ValueError: neither a number, numbers, `multiple_of(...)` nor a function of one or two arguments.
    """
    if ranks is None or isinstance(ranks, Multiple):
        return ranks
    if callable(ranks):
        try:
            arguments = len(inspect.signature(ranks).parameters)
        except ValueError:  # of some builtins nothing is known
            arguments = 0
        if arguments not in (1, 2):
            raise TypeError("ranks must be a function of the number of ranks, or of the topology and that number")
        return _Function(ranks, arguments == 2)
    if isinstance(ranks, Iterable) and not isinstance(ranks, str):
        counts = checks.integers(ranks, "ranks", 1)
        if not counts:
            raise ValueError("ranks must name at least one number of ranks")
        return _Listed(tuple(sorted(set(counts))))
    return _Listed((checks.integer(ranks, "ranks", 1),))


def refusal(name: str, rule: RankCounts, topology: Any, size: int) -> str:
    """Why a number of ranks is not supported, with the nearest numbers that are."""
    below = next((n for n in range(size - 1, max(0, size - _SEARCH), -1) if rule.takes(topology, n)), None)
    above = next((n for n in range(size + 1, size + _SEARCH) if rule.takes(topology, n)), None)
    near = " and ".join(str(n) for n in (below, above) if n is not None)
    hint = f"; the nearest supported: {near}" if near else ""
    return f"{name} takes {rule.words(topology)}, not {size}{hint}"
