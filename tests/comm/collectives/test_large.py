"""The large message, 2^20 + 3 elements, on cases that cover every pair of type, operator, collective, topology, ..."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest
from calls import MOVING, REDUCING, call, has, moved, place, reduced
from reference import DTYPES, LARGE, OPERATORS, RANKS, TOPOLOGIES, contributions, reference, takes

from pycollective import Communicator, local_world

PLACES = ("plain", "window", "in place")
Case = tuple[str, str, str, str, str, int]  # collective, topology, type, operator, place, number of ranks


def all_cases() -> list[Case]:
    """All cases; collectives that only move data have the operator "-"."""
    return [
        (collective, topology, dtype, op, where, n)
        for collective, topology, dtype in itertools.product((*REDUCING, *MOVING), TOPOLOGIES, DTYPES)
        if has(topology, collective)
        for op in (OPERATORS if collective in REDUCING else ("-",))
        if op == "-" or takes(op, dtype)
        for where, n in itertools.product(PLACES, RANKS)
    ]


def pairs(case: Case) -> set[tuple[object, ...]]:
    return {(i, case[i], j, case[j]) for i, j in itertools.combinations(range(len(case)), 2)}


def covering() -> list[Case]:
    """Cases that contain every pair of values that can occur together, greedily chosen."""
    choice = random.Random(1)
    cases = all_cases()
    choice.shuffle(cases)
    by_pair: dict[tuple[object, ...], list[Case]] = {}
    for case in cases:
        for pair in pairs(case):
            by_pair.setdefault(pair, []).append(case)
    missing = dict.fromkeys(sorted(by_pair, key=str))  # a set in a fixed order
    chosen = []
    while missing:
        able = by_pair[next(iter(missing))]
        best = max(choice.sample(able, min(len(able), 40)), key=lambda case: len(pairs(case) & missing.keys()))
        chosen.append(best)
        for pair in pairs(best):
            missing.pop(pair, None)
    return chosen


BASE = 4000
PICK = (np.arange(LARGE) * 7 + np.arange(LARGE) // 1013) % BASE // 2 * 2 + np.arange(LARGE) % 2
"""A million different elements from a few thousand: cheap to make, and no two tiles are equal."""


@pytest.mark.parametrize("case", covering(), ids=lambda case: "-".join(map(str, case)))
def test_large(case: Case) -> None:
    collective, topology, dtype, op, where, n = case
    base = contributions(dtype, op, n, BASE)
    xs = base[:, PICK]
    root = n // 2
    options = {"op": op} if collective in REDUCING else {}

    def body(comm: Communicator) -> Any:
        x = xs[comm.rank] if where == "plain" else place(comm, xs[comm.rank], "window")
        out = x if where == "in place" and collective in ("allreduce", "broadcast", "reduce") else None
        return call(comm, collective, x, root, out, topology=topology, **options)

    results = local_world(n).run(body)
    whole = reference(dtype, op, base)[PICK] if collective in REDUCING else None
    for rank, got in enumerate(results):
        if whole is None:
            expected = moved(collective, xs, root, rank)
            assert got is None if expected is None else got.tobytes() == expected.tobytes()
        elif (part := reduced(collective, whole, root, rank, n)) is None:
            assert got is None
        elif rank > 0 and collective == "allreduce":
            assert got.tobytes() == results[0].tobytes()
        else:
            assert part.error(got) == ""
