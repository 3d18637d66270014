"""Hypothesis strategies for programs: any sequence of statements that reads only initialized chunks."""

from __future__ import annotations

import functools
from typing import Any

from hypothesis import strategies as st

from pycollective.schedule import COLLECTIVES, Program

UNWEIGHTED = tuple(name for name, row in COLLECTIVES.items() if not row.weighted)
# Strategies are made once: validating a new one takes longer than drawing from it.
_COLLECTIVES = st.sampled_from(("allreduce",) * 4 + UNWEIGHTED)
_KINDS = st.sampled_from(("copy", "add", "sum", "sum to several", "copy to several"))
_one_of = functools.cache(st.sampled_from)
_or_none = functools.cache(lambda strategy: st.none() | strategy)


@st.composite
def programs(draw: Any, max_statements: int = 24, across: bool = False) -> Program:
    """A program for any collective on 1 to 5 ranks; most do not compute their collective, and need not.

    `across`: the ranks are on up to three hosts.
    """
    collective = COLLECTIVES[draw(_COLLECTIVES)]
    size = draw(st.integers(1, 3 if collective.split == "pairs" else 5))
    root = draw(st.integers(0, size - 1)) if collective.rooted else None
    hosts = draw(st.lists(st.integers(0, 2), min_size=size, max_size=size)) if across else ()
    p = Program(collective.name, size, root, hosts)
    chunks = p.chunks(collective.required_chunks(size) or draw(st.integers(1, 2)))
    held = {
        c: {r for r in p.ranks if collective.starts(r, c, size, root or 0)} for c in chunks
    }  # of each chunk, the ranks that hold something
    for _ in range(draw(st.integers(0, max_statements))):
        write_statement(draw, p, draw(_one_of(tuple(chunks))), held)
    return p


def write_statement(draw: Any, p: Program, c: int, held: dict[int, set[int]]) -> None:
    rank = st.integers(0, p.size - 1)
    holders = _one_of(tuple(sorted(held[c])))
    sources = draw(st.lists(holders, min_size=1, max_size=p.size, unique=draw(st.booleans())))
    at = draw(_or_none(rank))
    kind = draw(_KINDS)
    if kind == "add":
        destination = draw(holders)
        p[destination, c] += p[sources[0], c]
        return
    several = kind.endswith("several")
    destinations = draw(st.lists(rank, min_size=1, max_size=p.size, unique=True)) if several else [draw(rank)]
    if kind.startswith("copy"):
        p[destinations, c] = p.copy(p[sources[0], c], at=at)
    else:
        p[destinations, c] = p.sum((p[q, c] for q in sources), at=at)
    held[c].update(destinations)
