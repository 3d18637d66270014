"""The engine's agreement over both carriers: the same announcements lead to the same decisions.

One is the board in shared memory, driven step by step by a native program; the other is `_core.Rounds`, driven as by
the messages between hosts.
"""

from __future__ import annotations

import functools
import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from native.test_native import build, why_not
from seeds import examples

from pycollective import _core
from pycollective.engine import Item
from pycollective.engine.operation import DeviceArrays

pytestmark = pytest.mark.timeout(600)

KINDS = ("allreduce", "allreduce", "allreduce", "adasum", "broadcast", "allgather", "alltoall", "reducescatter",
         "barrier", "call")  # fmt: skip
COUNTS = (0, 1, 2, 3, 4, 30)  # of float32: the largest exceeds most thresholds
Unit = list[dict[str, Any]]
Step = tuple[int, list[bytes]] | None
"""A rank and its joint announcements; None: cut all complete operations."""


class Board:
    """The native program that drives the board."""

    def __init__(self, program: Any) -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen([program], text=True, bufsize=1, **pipes)

    def tell(self, *words: object) -> None:
        assert self.process.stdin is not None
        print(*words, file=self.process.stdin, flush=True)

    def cut(self) -> Any:
        self.tell("cut")
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        self.process.communicate(timeout=20)
        assert self.process.returncode == 0, "its ranks got different batches"


@pytest.fixture(scope="module")
def board() -> Iterator[Board]:
    if why_not():
        pytest.skip(why_not())
    started = Board(build("cpu", "board_script") / "board_script")
    yield started
    started.close()


def item(of: dict[str, Any], rank: int) -> Item:
    """A rank's item; `of["odd"]`: what differs on some ranks."""
    of = {**of, **of["odd"].get(rank, {})}
    kind, count = of["kind"], of["count"]
    x = None if kind in ("barrier", "call", "join") else np.zeros((count, 2), of["dtype"])
    if kind in ("allgather", "alltoall"):
        x = np.zeros((count + rank, 2), of["dtype"])
    made = Item(kind, of["name"], x, x, of["op"], root=of["root"], prescale=of["scale"], priority=of["priority"])
    if of["device"] and x is not None:
        made.gpu = DeviceArrays(0, str(x.dtype), x.nbytes)
    return made


def announced(unit: Sequence[dict[str, Any]], rank: int, size: int) -> list[bytes]:
    return _core.announcements([item(of, rank) for of in unit], size)


# Strategies are made once: validating a new one takes longer than drawing from it.
_ODD = st.sampled_from(({"dtype": "int32"}, {"count": 7}, {"op": "max"}, {"scale": 0.5}, {"kind": "barrier"},
                        {"kind": "broadcast"}, {"priority": -1}, {"device": True}))  # fmt: skip
_KINDS, _COUNTS, _SCALES = st.sampled_from(KINDS), st.sampled_from(COUNTS), st.sampled_from((1.0, 1.0, 0.25))
_DTYPES, _OPERATORS = st.sampled_from(("float32", "float32", "float64")), st.sampled_from(("sum", "sum", "min"))
_oddities = functools.cache(lambda size: st.dictionaries(st.integers(0, size - 1), _ODD, max_size=2))


@st.composite
def operations(draw: Callable[..., Any], size: int, name: str, like: dict[str, Any] | None = None) -> dict[str, Any]:
    """One operation; `like` another one, so that the two can be fused."""
    made = {
        "name": name,
        "kind": draw(_KINDS),
        "dtype": draw(_DTYPES),
        "op": draw(_OPERATORS),
        "scale": draw(_SCALES),
        "device": draw(st.integers(0, 7)) == 0,
    }
    made.update({key: like[key] for key in made if key != "name"} if like is not None else {})
    made["count"] = draw(_COUNTS)
    made["root"] = draw(st.integers(0, size - 1))
    made["priority"] = draw(st.integers(0, 2))
    made["odd"] = draw(_oddities(size)) if draw(st.integers(0, 4)) == 0 else {}
    if made["op"] == "min":  # does not support factors
        made["scale"] = 1.0
        made["odd"] = {rank: change for rank, change in made["odd"].items() if "scale" not in change}
    return made


@st.composite
def rounds(draw: Callable[..., Any], size: int) -> list[Step]:
    """Units that all ranks announce, in different orders; or some join before that, and in the end all do."""
    units: list[Unit] = []
    for number in range(draw(st.integers(1, 6))):
        first = draw(operations(size, f"{number}"))
        more = draw(st.integers(0, 3))
        units.append([first, *(draw(operations(size, f"{number}.{i}", like=first)) for i in range(more))])
    joins = draw(st.booleans())
    lines: list[list[Step]] = []
    for rank in range(size):
        line: list[Step] = []
        for unit in draw(st.permutations(units)):
            shuffled = draw(st.permutations(unit))
            if draw(st.integers(0, 15)) == 0:  # not as the group that other ranks announce
                line += [(rank, announced([one], rank, size)) for one in shuffled]
            else:
                line.append((rank, announced(shuffled, rank, size)))
        if joins:
            last = len(line) if rank == 0 else draw(st.integers(0, len(line)))
            line = [*line[:last], (rank, _core.announcements([Item("join", "join")], size))]
        lines.append(line)
    steps: list[Step] = []
    while any(lines):
        left = [line for line in lines if line]
        line = left[draw(st.integers(0, len(left) - 1))]
        steps.append(line.pop(0))
        steps += [None] if draw(st.integers(0, 5)) == 0 else []
    return [*steps, None]


@st.composite
def scripts(draw: Callable[..., Any]) -> tuple[list[int], int, list[Step]]:
    """The ranks' numbers in the world (a process set may lack some), a threshold in bytes, and the steps."""
    size = draw(st.integers(1, 4))
    world = sorted(draw(st.sets(st.integers(0, 6), min_size=size, max_size=size)))
    threshold = draw(st.sampled_from([0, 16, 40, 100, 1 << 20]))
    return world, threshold, [step for _ in range(draw(st.integers(1, 3))) for step in draw(rounds(size))]


def decisions(agreement: _core.Rounds) -> list[Any]:
    """In the format of the board's program."""
    agreement.cut()
    batches = []
    for batch in iter(agreement.fetch, []):
        rows: list[list[Any]] = []
        for one in batch:
            plain = one.collective == "allreduce" and not (one.device or one.difference or one.absent)
            rows.append([one.name] if plain else [one.name, one.difference, one.absent, one.rows])
            if one.collective == "join":
                rows[-1].append(one.last)
        batches.append(rows)
    return batches


@examples(400)
@given(script=scripts())
def test_both_carriers_decide_the_same(board: Board, script: tuple[list[int], int, list[Step]]) -> None:
    world, threshold, steps = script
    agreement = _core.Rounds(0, world, threshold, 0.001)
    board.tell("world", len(world), threshold, *world)
    for step in steps:
        if step is None:
            assert decisions(agreement) == board.cut()
            continue
        rank, unit = step
        board.tell("announce", rank, *(one.hex() for one in unit))
        for one in unit:
            agreement.announce(rank, one)
    assert agreement.waiting == 0
