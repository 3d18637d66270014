"""What all ranks derive identically from announced operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from pycollective import _core
from pycollective.engine import Item


def agreement(*world_ranks: int, rank: int = 0, threshold: int = 1000) -> _core.Rounds:
    return _core.Rounds(rank, world_ranks or (0, 1), threshold, 0.001)


def announce(rounds: _core.Rounds, ranks: Sequence[int], *items: Item) -> None:
    """What ranks submit together."""
    for rank in ranks:
        for announcement in _core.announcements(items, 2):
            rounds.announce(rank, announcement)


def fetch_all(rounds: _core.Rounds) -> list[list[_core.AgreedOperation]]:
    rounds.cut()
    return list(iter(rounds.fetch, []))


def item(name: str, nbytes: int = 8, **options: Any) -> Item:
    collective = options.pop("collective", "allreduce")
    x = None if collective in ("barrier", "join") else np.zeros(nbytes, np.uint8)
    return Item(collective, name, x, x, **options)


def cut(threshold: int, *units: Item | tuple[Item, ...]) -> list[str]:
    """Batches of what two ranks submit in this order."""
    rounds = agreement(threshold=threshold)
    for unit in units:
        announce(rounds, (0, 1), *(unit if isinstance(unit, tuple) else (unit,)))
    assert rounds.waiting == 0
    return ["".join(one.name for one in batch) for batch in fetch_all(rounds)]


def test_up_to_the_threshold() -> None:
    ready = [item(name) for name in "abcde"]
    assert cut(1000, *ready) == ["abcde"]
    assert cut(16, *ready) == ["ab", "cd", "e"]
    assert cut(0, *ready) == [*"abcde"], "each by itself"
    assert cut(20, item("a"), item("b", 100), item("c")) == ["a", "b", "c"], "nothing is passed over"


def test_operations_that_do_not_fuse() -> None:
    ready = [
        item("a"), item("b", op="max"), item("c", collective="barrier"), item("d"),
        item("e", collective="broadcast", root=0), item("f", op="max"), item("g"),
    ]  # fmt: skip
    assert cut(1000, *ready) == ["adg", "bf", "c", "e"]


def test_most_urgent_first() -> None:
    ready = [item(name, priority=need) for name, need in (("a", 3), ("b", 1), ("c", 2), ("d", 1))]
    assert cut(16, *ready) == ["bd", "ca"]
    assert cut(16, item("j", collective="join"), item("a", priority=9)) == ["a", "j"], "the end comes last"


def test_a_join_comes_after_what_it_completes() -> None:
    rounds = agreement(threshold=8)
    join = item("j", collective="join", priority=-1)
    announce(rounds, (1,), item("z", priority=9))
    announce(rounds, (1,), item("y", priority=9))
    announce(rounds, (1, 0), join)
    assert [[one.name for one in batch] for batch in fetch_all(rounds)] == [["z"], ["y"], ["j"]]


def test_a_group_is_not_split() -> None:
    ready = [item("a"), tuple(item(name) for name in "bcd"), item("e")]
    assert cut(16, *ready) == ["abcd", "e"]
    assert cut(16, item("x", 16), *ready) == ["x", "abcd", "e"]


def test_a_large_operation_between_the_members_of_a_group_does_not_split_it() -> None:
    ready = [item("x", 100, priority=2), (item("b", priority=1), item("c", priority=3)), item("d", priority=1)]
    assert cut(20, *ready) == ["bc", "d", "x"]
    assert cut(20, item("a"), *ready) == ["abc", "d", "x"]


def test_the_most_urgent_rank_decides_about_priority() -> None:
    rounds = agreement(threshold=0)
    for rank, first, second in ((0, 5, 2), (1, 1, 2)):
        announce(rounds, (rank,), item("b", priority=second))
        announce(rounds, (rank,), item("a", priority=first))
    assert [one.name for batch in fetch_all(rounds) for one in batch] == ["a", "b"]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_a_mismatch_does_not_block_other_operations(order: Sequence[int]) -> None:
    """The error names the lowest rank and the lowest one that differs from it, in any order of submission."""
    rounds = agreement(0, 3, 4)
    for rank in order:
        for name in "abc":
            announce(rounds, (rank,), item(name, 9 if name == "b" and rank == 1 else 8))
    batches = fetch_all(rounds)
    assert [[one.name for one in batch] for batch in batches] == [["a", "c"], ["b"]]
    assert batches[1][0].difference == (
        "operation 'b' differs between ranks: rank 0 submits allreduce(shape=(8,), dtype=uint8, op=sum); "
        "rank 1 (world rank 3) submits allreduce(shape=(9,), dtype=uint8, op=sum)"
    )
    assert not batches[0][0].difference


def test_pending_operations_and_missing_ranks() -> None:
    first, second = (agreement(0, 1, 2, rank=rank) for rank in (0, 1))
    for rounds in (first, second):
        announce(rounds, (1,), item("late"))
        announce(rounds, (2,), item("j", collective="join"))
    assert first.report() == second.report() == "  'late' has waited 0.0 s for rank 0\n"
    assert second.report(all=False) == second.report()
    assert first.report(all=False) == first.report(seconds=100) == ""
    announce(second, (0,), item("other"))
    assert second.report(all=False) == (
        "  'late' has waited 0.0 s for rank 0; rank 0 has submitted 'other', which waits for rank 1\n"
    )


def test_invalid_announcements_are_rejected() -> None:
    rounds = agreement()
    [announcement] = _core.announcements([item("a")], 2)
    for junk in (b"", announcement[:30], b"\xff" * len(announcement)):
        with pytest.raises(ValueError, match="an announcement"):
            rounds.announce(0, junk)
    rounds.announce(0, announcement)
    with pytest.raises(ValueError, match="announced twice"):
        rounds.announce(0, announcement)
    for rank in (-1, 2):
        with pytest.raises(ValueError, match=f"rank {rank}"):
            rounds.announce(rank, announcement)


def test_nan_factors_agree_with_themselves() -> None:
    """By IEEE a NaN is not equal to itself, but this is not a mismatch between ranks."""
    rounds = agreement()
    x = np.ones(3)
    announce(rounds, (0, 1), Item("allreduce", "a", x, x, prescale=float("nan")))
    assert fetch_all(rounds)[0][0].difference == ""
