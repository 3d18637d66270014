"""The ceiling: what an allreduce would cost if nobody had to wait for anybody.

Every rank reduces as many bytes, with the executor's own vector code, as ``direct`` would make it reduce: a
1/n share of n inputs, written to n outputs.  All of them are its own, so there is nothing to synchronise
and nothing to get wrong; the result is no allreduce, which is why it is not checked.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from . import Array, Call

if TYPE_CHECKING:
    from ..cases import Case

__all__ = ["CEILING", "CeilingPeer"]

CEILING = "ceiling"


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
        combine, share = self._combine, send.size // self._ranks
        sources = [send[i * share : (i + 1) * share] for i in range(self._ranks)]
        targets = [recv[i * share : (i + 1) * share] for i in range(self._ranks)]
        return lambda: combine(op, sources, targets)

    def _none(self, *_: object) -> Call:
        raise NotImplementedError("the ceiling knows allreduce only")

    broadcast = reduce = reduce_scatter = allgather = gather = scatter = alltoall = _none
