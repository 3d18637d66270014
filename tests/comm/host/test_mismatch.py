"""Ranks that make different calls: MismatchError on every rank, with both descriptions, without waiting."""

from __future__ import annotations

import copy
import itertools
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any, cast

import numpy as np
import pytest
from calls import MOVING, REDUCING, ROOTED, call, expected, has, on_each_rank
from processes import run
from reference import TOPOLOGIES
from speed import deadline

from pycollective import Communicator, MismatchError, local_world, op
from pycollective.comm.arguments.function_digest import digest_of
from pycollective.schedule import Program, topology

Act = Callable[[Any], Any]
LITTLE, MUCH = np.ones(8), np.ones(20_000)


def next_calls(comm: Communicator) -> None:
    """A rank that has left the call gets the mismatch in one of its next."""
    for _ in range(3):
        comm.allreduce(LITTLE)


def messages(acts: list[Act]) -> list[str]:
    """Each rank does its act and continues; returns each rank's MismatchError text."""

    def body(comm: Communicator) -> str:
        with pytest.raises(MismatchError) as caught:
            acts[comm.rank](comm)
            next_calls(comm)
        started = time.monotonic()
        for later in (comm.barrier, lambda: comm.iallreduce(LITTLE).wait(), lambda: comm.allreduce(LITTLE)):
            with pytest.raises(MismatchError):
                later()
        assert time.monotonic() - started < deadline(10)  # without waiting for the others
        return str(caught.value)

    return local_world(len(acts)).run(body)


def act(collective: str, topology: str, x: Any, root: int) -> Act:
    return lambda comm: call(comm, collective, x, root, topology=topology)


def catalogue() -> dict[str, Act]:
    """Calls that all differ."""
    acts: dict[str, Act] = {"barrier": lambda comm: comm.barrier()}
    for name, (size, x) in itertools.product(TOPOLOGIES, (("little", LITTLE), ("much", MUCH))):
        for collective in ("allreduce", "reduce", "reduce_scatter", "allgather", "alltoall"):
            if has(name, collective):
                acts[f"{collective} {name} {size}"] = act(collective, name, x, 0)
        for collective, root in itertools.product(("broadcast", "gather", "scatter"), (0, 1)):
            if has(name, collective):
                acts[f"{collective} {name} {size} {root}"] = act(collective, name, x, root)
    return acts


@pytest.mark.parametrize("n", [2, 3, 4])
def test_any_two_different_calls(n: int) -> None:
    acts = catalogue()
    pairs = list(itertools.permutations(acts, 2))
    choice = random.Random(n)
    wrong = []
    started = time.monotonic()
    for most, one in choice.sample(pairs, 1200 if n == 2 else 300):
        odd = choice.randrange(n)
        try:
            errors = messages([acts[one if rank == odd else most] for rank in range(n)])
            assert all(text.count(" calls ") == 2 for text in errors), errors
        except BaseException as error:
            wrong.append(f"rank {odd} {one}, others {most}: {error!r}")
            if len(wrong) > 10 or time.monotonic() - started > 60:
                break
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("hosts", [(0, 0, 0), (0, 0, 0, 0), (0, 0, 1, 1), (0, 1, 2)], ids=str)
def test_a_value_that_a_rank_returns_before_it_is_told_is_right(hosts: tuple[int, ...]) -> None:
    n = len(hosts)
    kinds = [
        (collective, topology, count, root)
        for collective, topology in itertools.product((*REDUCING, *MOVING), TOPOLOGIES)
        if has(topology, collective)
        for count, root in itertools.product((n, 8000 * n), (0, n - 1) if collective in ROOTED else (0,))
    ]
    choice = random.Random(sum(hosts) + n)

    def early(most: tuple[str, str, int, int], one: tuple[str, str, int, int], odd: int) -> int:
        """How many ranks have returned from a call that is `one` on the odd rank and `most` on the others."""

        def body(comm: Communicator) -> bool:
            collective, name, count, root = one if comm.rank == odd else most
            xs = np.arange(n * count).reshape(n, count)
            returned = False
            with pytest.raises(MismatchError):
                got = call(comm, collective, xs[comm.rank], root, topology=name, timeout=20)
                returned = True
                right = expected(collective, xs, root, comm.rank)
                assert right is None or np.array_equal(got, right), (most, one, odd, comm.rank)
                for _ in range(200):
                    comm.barrier(timeout=20)
            return returned

        return sum(local_world(n, hosts=hosts).run(body))

    assert sum(early(*choice.sample(kinds, 2), choice.randrange(n)) for _ in range(150)) > 0


def calls(method: str, *arguments: Any, **options: Any) -> Act:
    return lambda comm: getattr(comm, method)(*arguments, **options)


def gathers(*counts: int) -> Act:
    """A rank's part, of an allgather whose parts have these lengths."""
    return lambda comm: comm.allgatherv(np.ones(counts[comm.rank]), counts)


def in_turn(*acts: Act) -> Act:
    return lambda comm: [act(comm) for act in acts]


@dataclass(frozen=True)
class Shifted:
    """Everything is reduced at `first`; the first 39 characters of the labels are the same."""

    first: int = 0

    def allreduce(self, p: Program) -> None:
        for c in p.chunks(1):
            p[self.first, c] = p.sum(p[q, c] for q in range(p.size))
            for hop in range(1, p.size):
                p[self.first + hop, c] = p[self.first, c]


LONG = "a_name_as_long_as_the_text_that_used_to_be_compared"
SUM = calls("allreduce", LITTLE)
FIELDS: dict[str, tuple[Act, Act, str, str]] = {
    "collective": (SUM, calls("reduce", LITTLE), " calls allreduce(count=8", " calls reduce(count=8"),
    "dtype": (SUM, calls("allreduce", np.ones(8, np.int64)), "dtype=float64", "dtype=int64"),
    "count": (SUM, calls("allreduce", np.ones(9)), "count=8", "count=9"),
    "large count": (calls("allreduce", MUCH), calls("allreduce", MUCH[1:]), "count=20000", "count=19999"),
    "rows of each rank": (
        calls("allgather", np.ones(3)), calls("allgather", np.ones(4)),
        "allgather(count=2 x 3, dtype", "allgather(count=2 x 4, dtype",
    ),
    "rows for all ranks": (
        calls("alltoall", np.ones(6)), calls("alltoall", np.ones(8)),
        "alltoall(count=2 x 6, dtype", "alltoall(count=2 x 8, dtype",
    ),
    "rows that are divided": (
        calls("reduce_scatter", np.ones(6)), calls("reduce_scatter", np.ones(8)),
        "reduce_scatter(count=6, dtype", "reduce_scatter(count=8, dtype",
    ),
    "rows": (gathers(8, 8), gathers(8, 7), "allgather(count=2 x 8", "allgather(count=15"),
    "rows of the same sum": (gathers(9, 7), gathers(7, 9), "0 calls allgather(count=16", "1 calls allgather(count=16"),
    "op": (SUM, calls("allreduce", LITTLE, op="max"), "op=sum", "op=max"),
    "root": (calls("broadcast", LITTLE, 0), calls("broadcast", LITTLE, 1), "root=0", "root=1"),
    "topology": (
        calls("allreduce", LITTLE, topology="ring"), calls("allreduce", LITTLE, topology="tree"),
        "topology=ring", "topology=tree",
    ),
    "topology's parameter": (
        calls("allreduce", MUCH, topology="wheel(hub=1)"), calls("allreduce", MUCH, topology="wheel"),
        "topology=wheel(hub=1)", "topology=wheel",
    ),
    "end of a topology's label": (
        calls("allreduce", LITTLE, topology=f"{LONG}(first=1)"),
        calls("allreduce", LITTLE, topology=f"{LONG}(first=2)"),
        "first=1", "first=2",
    ),
    "scaling": (
        calls("allreduce", LITTLE, prescale=0.5), calls("allreduce", LITTLE, postscale=0.5),
        "prescale=0.5", "postscale=0.5",
    ),
    "factor": (
        calls("allreduce", LITTLE, postscale=0.25), calls("allreduce", LITTLE, postscale=0.5),
        "postscale=0.25", "postscale=0.5",
    ),
    "factors of one 32-bit digest": (  # two of 2^17 calls have the same
        calls("allreduce", np.ones(3), prescale=0.307635745), calls("allreduce", np.ones(3), prescale=0.415229674),
        "prescale=0.307636", "prescale=0.41523",
    ),
    "order": (in_turn(calls("barrier"), SUM), in_turn(SUM, calls("barrier")), "barrier(", "allreduce("),
    "one more": (
        in_turn(SUM, SUM, calls("broadcast", LITTLE)), in_turn(SUM, calls("broadcast", LITTLE)),
        "allreduce(", "broadcast(",
    ),
    # What follows exchanges the same bytes at first.
    "group": (calls("group", [0, 1]), calls("group", [1, 0]), "for group([0, 1])", "for group([1, 0])"),
    "split and a window": (calls("split", 0), calls("empty", 3), "for split", "for empty((3,)"),
    "split and dup": (calls("split", 0), calls("dup"), "for split", ""),
    "split and bytes": (calls("split", 0), calls("allgatherv", np.ones(6, np.uint8)), "for split", ""),
}  # fmt: skip


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("swapped", [False, True])
def test_each_field(field: str, swapped: bool) -> None:
    topology(LONG)(Shifted)
    first, second, *words = FIELDS[field]
    if swapped:
        first, second = second, first
    text = text_of([first, second])
    for word in (*words, "rank 0", "rank 1", "differs between ranks"):
        assert word in text, word


def text_of(acts: list[Act]) -> str:
    """The error, which is the same on all ranks."""
    [text] = set(messages(acts))
    return text


@pytest.mark.parametrize("hosts", [(0, 0), (0, 1)], ids=str)
@pytest.mark.parametrize("call", ["allreduce", "iallreduce", "allgatherv", "barrier"])
@on_each_rank()
def test_calls_that_are_to_match_are_compared(comm: Communicator, call: str, hosts: tuple[int, ...]) -> None:
    def once(match: Any) -> Any:
        given = () if call == "barrier" else (np.ones(3) + comm.rank,)
        made = getattr(comm, call)(*given, match=match)
        return made.wait(20) if call.startswith("i") else made

    for match in ("left", "right", 7, "left", None):
        once(match)
    with pytest.raises(TypeError, match="match"):
        once(1.5)
    with pytest.raises(MismatchError, match=r"match='(left|right)'.*match='(left|right)'"):
        once("left" if comm.rank else "right")
        comm.barrier()


@pytest.mark.parametrize("count", [3, 50_000])
@pytest.mark.parametrize("what", ["size", "dtype"])
@on_each_rank(2)
def test_messages_that_do_not_fit(comm: Communicator, what: str, count: int) -> None:
    other = np.empty(count + 1) if what == "size" else np.empty(count, np.float32)
    with pytest.raises(MismatchError) as caught:
        comm.send(np.ones(count), 1) if comm.rank == 0 else comm.recv(other, 0)
        if count == 3:  # its sender may complete alone
            next_calls(comm)
    assert f"rank 0 calls send(count={count}, dtype=float64" in str(caught.value)
    assert f"rank 1 calls recv(count={other.size}, dtype={other.dtype}" in str(caught.value)


def disagree(comm: Communicator, link: Connection) -> tuple[str, int]:
    with pytest.raises(MismatchError) as caught:
        comm.allreduce(np.ones(50_000, "f4" if comm.rank == 2 else "f8"))
        next_calls(comm)
    again = comm.shrink()
    return str(caught.value), int(again.allreduce(np.ones(1))[0])


def test_processes_and_a_fresh_start() -> None:
    for text, total in run(4, disagree):
        assert "rank 2 calls allreduce(count=50000, dtype=float32" in text
        assert "calls allreduce(count=50000, dtype=float64" in text
        assert total == 4


def scaled_by(factor: Any) -> Callable[[Any, Any], Any]:
    return lambda a, b: a + b * factor


def reading_a_global(value: Any) -> Callable[[Any, Any], Any]:
    """All have the same code; each reads names from its own namespace."""
    names: dict[str, Any] = {"outside": value}
    exec("def combine(a, b):\n    return a + b * outside", names)
    return cast("Callable[[Any, Any], Any]", names["combine"])


@pytest.mark.parametrize(
    "functions",
    [
        [scaled_by(1.0), scaled_by(2.0)],
        [reading_a_global(1.0), reading_a_global(2.0)],
        [lambda a, b: min(a, b), lambda a, b: max(a, b)],
    ],
    ids=["captured value", "global", "code"],
)
def test_operators_that_differ(functions: list[Callable[[Any, Any], Any]]) -> None:
    pytest.importorskip("numba")
    text = text_of([calls("allreduce", LITTLE, op=op(each, "combine")) for each in functions])
    assert "what differs: the operator's code, or what it reads" in text and text.count(" calls allreduce(") == 2


def reduce_with_own_operators(comm: Communicator, link: Connection) -> list[Any]:
    nested = op(lambda a, b: [item for item in (a, b)][1])  # noqa: C416 (a nested code object)
    return [comm.allreduce(np.arange(3) + comm.rank, op=each).tolist() for each in (nested, op(scaled_by(3)))]


def test_the_same_operator_in_two_processes_is_the_same() -> None:
    pytest.importorskip("numba")
    assert run(2, reduce_with_own_operators) == [[[1, 2, 3], [3, 7, 11]]] * 2


@pytest.mark.parametrize("make", [scaled_by, reading_a_global])
@pytest.mark.parametrize("value", [2.0, (3, 4), np.arange(3), scaled_by(2), frozenset("abc"), np, object()])
def test_operators_made_twice_of_equal_values_are_equal(make: Any, value: Any) -> None:
    copied = copy.deepcopy(value) if not isinstance(value, ModuleType) else value
    assert digest_of(make(value)) == digest_of(make(copied)) != digest_of(make(5.5))
