"""The ceiling: the cost of an allreduce, or of a mix, without any waiting.

Every rank reduces as many bytes, with the executor's own vector code, as ``direct`` would make it reduce: a
1/n share of n inputs, written to n outputs; for a mix, as many whole inputs as it reads, with their weights, written to
one output.  All of them are its own, so there is no synchronization; the result is that of no collective and is
therefore not checked.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import numpy as np

from . import Array, Call, Peer

if TYPE_CHECKING:
    from pycollective.graphs import Graph

    from ..workload.cases import Case

__all__ = ["CEILING", "CeilingPeer", "streams"]

CEILING = "ceiling"
_CACHE = 32 << 20  # bytes: larger outputs bypass the third-level cache


def streams(nbytes: int, ranks: int) -> bool:
    """Return whether the executor writes outputs past the caches in an allreduce of so many bytes."""
    return 2 * nbytes * ranks > _CACHE


class CeilingPeer(Peer):
    """Only allreduce, for counts divisible by the number of ranks, and mix."""

    name = CEILING
    checked = False

    def __init__(self, rank: int, ranks: int) -> None:
        self._rank, self._ranks = rank, ranks
        self._combine: Any = importlib.import_module("pycollective._core").combine

    def supports(self, case: Case) -> bool:
        return case.kind.weighted or (case.collective == "allreduce" and case.count % case.ranks == 0)

    def allreduce(self, send: Array, recv: Array, op: str) -> Call:
        combine = self._combine
        sources, targets = np.split(send, self._ranks), np.split(recv, self._ranks)
        streamed = send is not recv and streams(send.nbytes, self._ranks)
        return lambda: combine(op, sources, targets, streamed)

    def mix(self, send: Array, recv: Array, graph: Graph) -> Call:
        combine, weights = self._combine, list(graph(self._rank, self._ranks).values())
        sources = [send, *(np.ones_like(send) for _ in weights[1:])]
        streamed = (len(weights) + 1) * send.nbytes * self._ranks > _CACHE
        return lambda: combine("sum", sources, [recv], streamed, weights=weights)
