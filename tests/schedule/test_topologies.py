"""Every topology, collective, number of ranks and placement: verified, and a sample of them executed."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator

import pytest

from pycollective.schedule import COLLECTIVES, Placement, Schedule, compile, describe, get, info, names, verify_topology
from pycollective.topologies import tree

from .interpreter import Interpreter, inputs_for

PARAMETRISED = ["hierarchical(inner='star')", "wheel(hub=1)", "wheel(hub=4)", "star(hub=2)"]
PARAMETRISED += ["tree(segments=1)", "tree(segments=3)"]
TILES = 3


@pytest.mark.parametrize("size", [*range(1, 10), 12, 16, 17])
@pytest.mark.parametrize("topology", names())
def test_all_are_proved(topology: str, size: int) -> None:
    reports = list(verify_topology(topology, [size]))
    assert len(reports) >= len(info(topology).collectives) * len(Placement)


@pytest.mark.parametrize("topology", PARAMETRISED)
def test_parameters_are_proved_too(topology: str) -> None:
    assert list(verify_topology(topology, range(1, 8)))


@pytest.mark.parametrize("topology", names())
def test_any_root_will_do(topology: str) -> None:
    rooted = [name for name in info(topology).collectives if COLLECTIVES[name].rooted]
    places = (Placement.STAGED, Placement.WINDOW)
    for size in (5, 6):
        assert list(verify_topology(topology, [size], places, rooted, range(size)))


def test_each_collective_is_there() -> None:
    rows = describe()
    assert all({"allreduce", "broadcast"} <= set(row.collectives) for row in rows)
    unweighted = [name for name, row in COLLECTIVES.items() if not row.weighted]
    assert {name for row in rows for name in row.collectives} >= set(unweighted)
    assert info("direct").collectives == tuple(unweighted)


def schedules(
    topology: str, hosts: tuple[int, ...], placements: Iterable[Placement] = (Placement.STAGED,)
) -> Iterator[Schedule]:
    """All that a topology has for ranks on these hosts, with the first and the last rank as root."""
    instance, size = get(topology), len(hosts)
    for name in info(instance).collectives:
        for small in (False, True) if hasattr(instance, f"{name}_small") else (False,):
            for root in sorted({0, size - 1}) if COLLECTIVES[name].rooted else (None,):
                for placement in placements:
                    if COLLECTIVES[name].in_place != "never" or not placement.inplace:
                        yield compile(instance, name, size, root, placement, small, hosts)


LAYOUTS = [(0,), (0, 0), (0, 0, 0), (0, 0, 0, 0, 0), (0, 1), (0, 0, 1, 2), (0, 1, 0, 1, 1)]


@pytest.mark.parametrize("topology", names())
@pytest.mark.parametrize("hosts", LAYOUTS, ids=str)
def test_sums_come_out_scaled_once(topology: str, hosts: tuple[int, ...]) -> None:
    """Executed over numbers: 7 times the sum of 3 times the inputs for reductions, plain copies otherwise."""
    for schedule in schedules(topology, hosts, Placement):
        row = COLLECTIVES[schedule.collective]
        calls = [inputs_for(schedule, TILES, call) for call in range(2)]
        for same_array in (False, True) if schedule.placement is Placement.STAGED else (False,):
            run = Interpreter(schedule, TILES, 7, operator.add, (3).__mul__, (7).__mul__, same_array)
            for inputs, outputs in zip(calls, run.run(calls), strict=True):
                assert outputs or schedule.size == 1  # an exscan of one rank has none
                for (rank, chunk, tile), value in outputs.items():
                    sources = (r for r in range(schedule.size) if row.contributes(r, rank))
                    total = sum(inputs.get((source, chunk, tile), 0) for source in sources)
                    assert value == (21 if row.reduces else 1) * total, (schedule.title, rank, chunk, tile)


def volume(schedule: Schedule, rank: int) -> float:
    """What a rank reads from others, in units of the message."""
    steps = schedule.ranks[rank].steps
    return sum(source.rank != rank for step in steps for source in step.sources) / schedule.chunks


def depth(schedule: Schedule) -> int:
    """The longest chain of steps of different ranks that wait for each other."""
    finished: dict[tuple[int, int], int] = {}
    while len(finished) < sum(len(mine.steps) for mine in schedule.ranks):
        for rank, mine in enumerate(schedule.ranks):
            for index, step in enumerate(mine.steps):
                needs = [(wait.peer, wait.count - 1) for wait in step.waits if wait.count]
                if all(need in finished for need in needs):
                    finished[rank, index] = 1 + max((finished[need] for need in needs), default=0)
                else:
                    break
    return max(finished.values(), default=0)


def window(topology: str, collective: str, size: int, small: bool = False) -> Schedule:
    return compile(topology, collective, size, placement=Placement.WINDOW, small=small)


@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_ring_and_direct_move_the_least(n: int) -> None:
    least = 2 * (n - 1) / n
    assert all(volume(window("ring", "allreduce", n), rank) == pytest.approx(least) for rank in range(n))
    assert depth(window("ring", "allreduce", n)) == 2 * (n - 1)
    assert depth(window("direct", "allreduce", n)) == 1  # the second round is the writing
    assert all(volume(window("direct", "allreduce", n), rank) == pytest.approx(least / 2) for rank in range(n))


@pytest.mark.parametrize("n", range(2, 18))
def test_halving_doubling_takes_logarithmic_rounds(n: int) -> None:
    rounds = math.ceil(math.log2(n))
    schedule = window("halving_doubling", "allreduce", n)
    assert depth(schedule) <= 2 * rounds
    most = max(volume(schedule, rank) for rank in range(n))
    if n == 1 << rounds:
        assert most == pytest.approx(2 * (n - 1) / n)
    assert most <= 2 * (n - 1) / n + 0.75
    staged = compile("halving_doubling", "allreduce", n, small=True)
    assert depth(staged) == rounds + 1  # with the copy into scratch


@pytest.mark.parametrize("n", range(1, 18))
def test_no_rank_is_inner_in_both_trees(n: int) -> None:
    inner = [{parent for parent, children in edges if children} for edges in tree.two_trees(list(range(n)))]
    assert not inner[0] & inner[1]
    for edges in tree.two_trees(list(range(n))):
        assert sorted(parent for parent, _ in edges) == list(range(n))
        assert sorted(child for _, children in edges for child in children) == sorted(set(range(n)) - {edges[-1][0]})
        assert all(len(children) <= 2 for _, children in edges)


@pytest.mark.parametrize("n", range(2, 18))
def test_trees_are_logarithmic(n: int) -> None:
    assert depth(window("tree", "allreduce", n)) <= 2 * math.ceil(math.log2(n + 1))
    assert depth(window("tree", "allreduce", n, small=True)) <= 2 * math.ceil(math.log2(n))


@pytest.mark.parametrize("n", [3, 4, 8])
def test_the_hub_of_a_wheel_carries_its_part_once_each_way(n: int) -> None:
    schedule = compile("wheel(hub=1)", "allreduce", n, placement=Placement.WINDOW)
    steps = [step for mine in schedule.ranks for step in mine.steps]
    read_from = [s for step in steps for s in step.sources if s.rank == 1]
    written_to = [t for step in steps for t in step.targets if t.rank == 1]
    assert len(read_from) == len(written_to) == schedule.chunks == n - 1
    assert schedule.ranks[1].steps == ()  # the others do it for the hub
    assert depth(window("wheel", "allreduce", n, small=True)) == 2


def test_some_reduce_in_rank_order() -> None:
    assert {name for name in names() if info(name).order == "rank"} == {"direct", "ordered", "star"}
