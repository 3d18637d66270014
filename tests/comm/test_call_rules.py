"""The core's checks of a call's arrays, used by every backend: lengths, overlap and placement."""

from __future__ import annotations

import pytest

from pycollective import _core
from pycollective.schedule.collectives import COLLECTIVES, Collective

ITEM = 4
IN, OUT, IN_PLACE = 1, 2, 4
ROWS = pytest.mark.parametrize("row", COLLECTIVES.values(), ids=COLLECTIVES)
Described = tuple[int, int, str, bool]


def described(address: int, count: int, writable: bool = True) -> Described:
    return address, count, "float32", writable


def counts_of(row: Collective, size: int) -> list[int] | None:
    chunks = row.required_chunks(size)
    return None if chunks is None else [1 + 3 * chunk % 7 for chunk in range(chunks)]


def arrays(row: Collective, rank: int, size: int) -> tuple[Described | None, Described | None]:
    """x and out with the lengths of the rank's chunks, far apart."""
    counts = counts_of(row, size)

    def length(holds: object) -> int:
        return 17 if counts is None else sum(n for c, n in enumerate(counts) if holds(rank, c, size, 0))  # type: ignore[operator]

    x = described(4096, length(row.starts)) if row.has_input(rank, 0) else None
    out = described(1 << 20, length(row.ends)) if row.has_output(rank, 0) else None
    return x, out


@ROWS
@pytest.mark.parametrize("size", [1, 2, 5])
def test_arrays_must_have_the_lengths_of_a_ranks_chunks(row: Collective, size: int) -> None:
    counts = counts_of(row, size)
    for rank in range(size):
        x, out = arrays(row, rank, size)
        if (x is None and out is None) or not row.has_result(rank):
            continue
        _core.check_call(row.name, rank, size, 0, counts, x, out)
        for what, given in (("x", x), ("out", out)):
            if given is None or (counts is None and out is None) or (counts is None and x is None):
                continue
            longer = described(given[0], given[1] + 1)
            changed = (longer, out) if what == "x" else (x, longer)
            with pytest.raises(ValueError, match="elements; this call needs"):
                _core.check_call(row.name, rank, size, 0, counts, *changed)


@pytest.mark.parametrize("row", [row for row in COLLECTIVES.values() if not row.rooted], ids=lambda row: row.name)
def test_overlap_is_refused_except_in_place(row: Collective) -> None:
    size, rank = 3, 1
    counts = counts_of(row, size)
    x, out = arrays(row, rank, size)
    assert x is not None
    assert out is not None
    own = 0 if counts is None or row.split == "pairs" else sum(counts[:rank]) * ITEM
    place = x[0] + (own if row.packed_output else 0) - (own if row.packed_input else 0)
    same = described(place, out[1])
    if row.in_place == "never" and place == x[0]:
        with pytest.raises(ValueError, match="cannot work in place"):
            _core.check_call(row.name, rank, size, 0, counts, x, same)
    elif row.in_place != "never":
        _core.check_call(row.name, rank, size, 0, counts, x, same)
    with pytest.raises(ValueError, match="overlap without being in place"):
        _core.check_call(row.name, rank, size, 0, counts, x, described(place + ITEM, out[1]))


def test_errors_name_the_wrong_argument() -> None:
    x = described(4096, 4)
    for given, error, words in (
        ((9, None, x, x), ValueError, "root 9 is not a rank"),
        ((0, None, None, x), TypeError, "x is missing"),
        ((0, None, x, None), TypeError, "out is missing"),
        ((0, None, x, described(8192, 4, False)), ValueError, "out is read-only"),
        ((0, None, x, (8192, 4, "int32", True)), TypeError, "x is float32 but out is int32"),
        ((0, None, x, (8192, 4, "float3", True)), TypeError, "float3"),
        ((0, None, None, None), TypeError, "neither"),
    ):
        with pytest.raises(error, match=words):
            _core.check_call("reduce", 0, 2, *given)
    for rank in (-1, 2):
        with pytest.raises(ValueError, match=f"rank {rank} is not one of 2 ranks"):
            _core.check_call("allgather", rank, 2, -1, [4, 4], x, described(8192, 8))
    with pytest.raises(ValueError, match="counts: one for each of 2 ranks"):
        _core.check_call("allgather", 0, 2, -1, [4, -1], x, described(8192, 8))
    with pytest.raises(ValueError, match="overflows 64 bits"):
        _core.check_call("allgather", 0, 2, -1, [2**62, 2**62], x, described(8192, 8))


@pytest.mark.parametrize(
    ("collective", "apart", "in_place"),
    [
        ("allreduce", IN | OUT, IN | OUT | IN_PLACE),
        ("broadcast", IN | OUT | IN_PLACE, IN | OUT | IN_PLACE),  # one buffer: out, into which the root's x is copied
        ("reduce", IN, None),
        ("barrier", 0, 0),
    ],
)
def test_placements_that_peers_may_use(collective: str, apart: int, in_place: int | None) -> None:
    x, out = described(4096, 100), described(8192, 100)
    assert _core.placement(collective, x, out, True, True) == apart
    assert _core.placement(collective, x, out, False, False) == 0
    assert _core.placement(collective, x, described(4096 + 40, 100), True, True) in (0, apart & IN_PLACE and apart)
    if in_place is not None:
        assert _core.placement(collective, x, x, True, True) == in_place


@pytest.mark.parametrize("given", [None, 0, 2.5, 1e12, float("inf")])
def test_a_timeout_is_a_number_of_seconds(given: float | None) -> None:
    seconds = _core.timeout_of(given)
    assert seconds == (seconds if given is None else min(given, 1e9))


@pytest.mark.parametrize("given", [-1, float("nan"), "1", object()])
def test_invalid_timeouts_are_refused(given: object) -> None:
    with pytest.raises((ValueError, TypeError), match="timeout must be a number of seconds"):
        _core.timeout_of(given)
