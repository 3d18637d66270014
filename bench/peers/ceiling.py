"""The ceiling: what an allreduce would cost if nobody had to wait for anybody.

Every rank reduces as many bytes, with the executor's own vector code, as ``direct`` would make it reduce: a
1/n share of n inputs, written to n outputs.  All of them are its own, so there is nothing to synchronise
and nothing to get wrong; the result is no allreduce, which is why it is not checked.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import numpy as np

from . import Array, Call

if TYPE_CHECKING:
    from ..cases import Case

__all__ = ["CEILING", "CeilingPeer"]

CEILING = "ceiling"
_TILE = 512 * 1024  # bytes; in the second-level cache with its inputs


class CeilingPeer:
    """Only allreduce, and only for counts that the ranks divide."""

    name = CEILING
    version = ""
    always_in_place = frozenset[str]()
    checked = False

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._combine: Any = importlib.import_module("pycollective._core").combine

    def supports(self, case: Case) -> bool:
        return case.collective == "allreduce" and case.count % case.ranks == 0

    def allreduce(self, send: Array, recv: Array, op: str) -> Call:
        combine = self._combine
        sources, targets = np.split(send, self._ranks), np.split(recv, self._ranks)
        try:
            combine(op, [source[:1] for source in sources], [target[:1] for target in targets])
        except (TypeError, ValueError):  # this core writes to one array at a time
            return self._by_tiles(op, sources, targets)
        return lambda: combine(op, sources, targets)

    def _by_tiles(self, op: str, sources: list[Array], targets: list[Array]) -> Call:
        """Reduce into the first output, copy on to the others while a tile is in cache."""
        combine, size = self._combine, sources[0].size
        cuts = range(_TILE // sources[0].itemsize, size, _TILE // sources[0].itemsize)
        tiles = [
            (list(pieces[: self._ranks]), pieces[self._ranks], pieces[self._ranks + 1 :])
            for pieces in zip(*(np.split(array, cuts) for array in (*sources, *targets)), strict=True)
        ]

        def call() -> None:
            for inputs, first, others in tiles:
                combine(op, inputs, first)
                for other in others:
                    np.copyto(other, first)

        return call

    def _none(self, *_: object) -> Call:
        raise NotImplementedError("the ceiling knows allreduce only")

    broadcast = reduce = reduce_scatter = allgather = gather = scatter = alltoall = _none
