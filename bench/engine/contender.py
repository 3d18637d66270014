"""A contender in a comparison."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..measurement.measure import Timed
from ..peers import Array, Call
from ..ranks.world import World
from .tensors import count_wrong, fill

__all__ = ["Contender", "Summing", "Unchecked"]


class Contender(Timed):
    """A call that takes turns with others.

    Args:
        library: "pycollective", "gloo", "openmpi" or "mpich".
        call: does the work once, and returns when it has completed.
    """

    def __init__(self, library: str, call: Call) -> None:
        super().__init__(call)
        self.library = library

    def check(self, world: World) -> int:
        """Run once on known inputs; returns the number of wrong elements on this rank.  Collective."""
        raise NotImplementedError


class Unchecked(Contender):
    """A call without a result."""

    def check(self, world: World) -> int:
        self.call()
        return 0


class Summing(Contender):
    """A call that sums arrays over the ranks, in place or into what it returns, in the arrays' order."""

    def __init__(self, library: str, inputs: Sequence[Array], call: Callable[[], Any], in_place: bool = True) -> None:
        super().__init__(library, call)
        self._inputs, self._in_place = inputs, in_place

    def check(self, world: World) -> int:
        fill(self._inputs, world.rank)
        world.barrier()
        returned: Any = self.call()
        wrong = count_wrong(self._inputs if self._in_place else returned, world.size)
        for array in self._inputs:
            array[...] = 0  # otherwise repeated sums in place would overflow
        return wrong
