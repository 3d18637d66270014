"""What follows, alike on all ranks, from what they have told each other about operations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pycollective.engine import Item
from pycollective.engine.agreed import Operation, batches, read


def operation(
    name: str, nbytes: int = 8, differs: bool = False, group: tuple[str, ...] = (), **options: Any
) -> Operation:
    """Of two ranks; its array has `nbytes`, and differs where they differ."""
    made = Operation(name, 0.0)
    collective = options.pop("collective", "allreduce")
    for rank in range(2):
        x = None if collective in ("barrier", "join") else np.zeros(nbytes + differs * rank, np.uint8)
        made.said[rank] = read(Item(collective, name, x, x, **options), group, 2)
    return made


def cut(ready: list[Operation], threshold: int) -> list[str]:
    return ["".join(one.name for one in batch) for batch in batches(ready, threshold)]


def test_up_to_the_threshold() -> None:
    ready = [operation(name) for name in "abcde"]
    assert cut(ready, 1000) == ["abcde"]
    assert cut(ready, 16) == ["ab", "cd", "e"]
    assert cut(ready, 0) == [*"abcde"], "each by itself"
    assert cut([operation("a"), operation("b", 100), operation("c")], 20) == ["a", "b", "c"], "nothing is passed over"


def test_what_does_not_fuse() -> None:
    ready = [
        operation("a"), operation("b", op="max"), operation("c", collective="barrier"), operation("d"),
        operation("e", collective="broadcast", root=0), operation("f", op="max"), operation("g"),
    ]  # fmt: skip
    assert cut(ready, 1000) == ["adg", "bf", "c", "e"]


def test_what_is_needed_first_goes_first() -> None:
    ready = [operation(name, priority=need) for name, need in (("a", 3), ("b", 1), ("c", 2), ("d", 1))]
    assert cut(ready, 16) == ["bd", "ca"]
    assert cut([operation("j", collective="join"), operation("a", priority=9)], 16) == ["a", "j"], "the end comes last"


def test_a_group_is_not_torn_apart() -> None:
    group = ("b", "c", "d")
    ready = [operation("a"), *(operation(name, group=group) for name in group), operation("e")]
    assert cut(ready, 16) == ["abcd", "e"]
    assert cut([operation("x", 16), *ready], 16) == ["x", "abcd", "e"]


def test_ranks_that_differ_keep_nobody_else_from_it() -> None:
    ready = [operation("a"), operation("b", differs=True), operation("c")]
    assert cut(ready, 1000) == ["ac", "b"]
    text = ready[1].difference()
    assert "'b'" in text
    assert "(8,)" in text
    assert "(9,)" in text
    assert not ready[0].difference()


@pytest.mark.parametrize(
    ("item", "error", "said"),
    [
        (Item("allreduce", "a", np.zeros(3), np.zeros(3), op="bxor"), TypeError, "bxor"),
        (Item("allreduce", "a", np.zeros(3), np.zeros(3, np.float32)), TypeError, "element types"),
        (Item("allreduce", "a", np.zeros(3), np.zeros(4)), ValueError, "size"),
        (Item("broadcast", "a", np.zeros(3), root=2), ValueError, "root 2"),
        (Item("allreduce", "a", np.zeros(3, "i4"), np.zeros(3, "i4"), op="bor", prescale=2.0), TypeError, "factors"),
        (Item("reducescatter", "a", np.zeros(3), op="band"), TypeError, "band"),
    ],
)
def test_what_would_fail_here_alone_is_not_said(item: Item, error: type[Exception], said: str) -> None:
    """On this rank it would, and the others would wait."""
    with pytest.raises(error, match=said):
        read(item, (), 2)
