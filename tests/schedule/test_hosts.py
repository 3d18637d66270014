"""Schedules for ranks on several hosts: proved, executed, and no value crosses to a host more than once."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

import pytest

from pycollective.comm.planner import SHORT_BETWEEN_HOSTS
from pycollective.errors import TopologyError, VerificationError
from pycollective.schedule import COLLECTIVES, Program, compile, compile_program, trace, verify, verify_topology
from pycollective.schedule.compiler import messages
from pycollective.schedule.compiler.schedule import Placement, Schedule, traffic
from pycollective.schedule.compiler.steps import IN, OUT, Source, Step, Target, Wait
from pycollective.schedule.compiler.values import build_values
from pycollective.schedule.language.registry import get, info, names
from pycollective.schedule.mixing import evaluate
from pycollective.schedule.verifier.verifier import layouts

from .interpreter import Interpreter, Stuck, inputs_for
from .test_topologies import schedules
from .test_verifier import with_rank, with_step, without_one_wait

HOSTS = [(0, 1), (0, 0, 1), (0, 1, 2), (0, 1, 0, 1), (0, 0, 0, 1, 1), (0, 1, 2, 3), (0, 1, 1, 2, 2, 2)]
HOSTS += [(0, 1, 2, 0, 1, 2), (0, 0, 1, 1, 2, 2, 3, 3)]
"""Equal and unequal hosts, one rank a host, ranks in blocks and interleaved."""
ACROSS = (0, 0, 1, 1)


@pytest.mark.parametrize("hosts", HOSTS, ids=str)
@pytest.mark.parametrize("topology", [*names(), SHORT_BETWEEN_HOSTS])
def test_all_are_proved(topology: str, hosts: tuple[int, ...]) -> None:
    """The larger layouts in all placements: only of the default topology, to save time."""
    all_placements = topology == "ordered" or len(hosts) < 5
    some = (Placement.STAGED, Placement.WINDOW, Placement.INPLACE) if len(hosts) < 7 else (Placement.STAGED,)
    for schedule in schedules(topology, hosts, Placement if all_placements else some):
        assert verify(schedule).title == schedule.title
        assert schedule.hosts == hosts
        if schedule.placement is Placement.STAGED or all_placements:
            assert schedule.depth == 1 if schedule.small else schedule.depth > 1 or not sends(schedule)


@pytest.mark.parametrize("placement", [Placement.WINDOW, Placement.INPLACE])
def test_in_windows_only_what_crosses_is_copied_to_scratch(placement: Placement) -> None:
    schedule = compile("ordered", "allreduce", 8, None, placement, hosts=(0, 0, 0, 0, 1, 1, 1, 1))
    steps = [(rank, step) for rank, mine in enumerate(schedule.ranks) for step in mine.steps]
    in_scratch = [(rank, step.kind) for rank, step in steps if any(target.place >= 0 for target in step.targets)]
    received = {(rank, kind) for rank, kind in in_scratch if kind != "send"}
    assert received == {(rank, "recv") for rank in range(4, 8)}  # partial sums of the first host
    assert len(steps) == 8 * 6
    for rank, step in steps:  # sent from the rank's output, received in it, and copied from its peers'
        if step.kind == "send" or (step.kind == "recv" and rank < 4):
            assert {place.place for place in (step.sources if step.kind == "send" else step.targets)} == {OUT}


@pytest.mark.parametrize("placement", Placement)
def test_a_peer_may_write_an_output_only_on_its_host(placement: Placement) -> None:
    p = Program("allreduce", 4, None, ACROSS)
    for c in p.chunks(1):
        p[range(4), c] = p.sum((p[q, c] for q in range(4)), at=0)
    schedule = compile_program(p, placement)
    verify(schedule)
    written = {(rank, target.rank) for rank, mine in enumerate(schedule.ranks) for step in mine.steps
               if step.kind == "combine" for target in step.targets if target.place == OUT}  # fmt: skip
    assert ((0, 1) in written) == placement.out_shared
    assert {ACROSS[rank] == ACROSS[owner] for rank, owner in written} == {True}


def sends(schedule: Schedule) -> list[tuple[int, Step]]:
    return [(rank, step) for rank, mine in enumerate(schedule.ranks) for step in mine.steps if step.kind == "send"]


@pytest.mark.parametrize("hosts", [(0, 0, 0, 1, 1), (0, 1, 0, 1), (0, 1, 1, 2, 2, 2)], ids=str)
@pytest.mark.parametrize("topology", names())
def test_a_value_crosses_once_to_each_host_that_needs_it(topology: str, hosts: tuple[int, ...]) -> None:
    for schedule in schedules(topology, hosts):
        program = trace(topology, schedule.collective, schedule.size, schedule.root, schedule.small, hosts=hosts)
        graph = build_values(program, pull_copies=True)
        crossings = 0
        for value in (*graph.initial.values(), *itertools.chain.from_iterable(graph.groups)):
            needed = {hosts[rank] for rank in (*value.finals, *(reader for reader, _ in value.reads))}
            crossings += len(needed - {hosts[value.rank]})
        assert sum(len(step.targets) for _, step in sends(schedule)) == crossings, schedule.title


@pytest.mark.parametrize("hosts", HOSTS, ids=str)
def test_mix_is_proved(hosts: tuple[int, ...]) -> None:
    matrix = evaluate(lambda rank, size, step: {rank: 0.5, (rank + 1) % size: 0.5}, len(hosts), 0)
    for placement in Placement:
        verify(matrix.schedule(placement, hosts))
    step = sends(matrix.schedule(hosts=hosts))[0][1]
    assert step.sources[0].place >= 0  # the input, which may be the output, is overwritten before it may have arrived


def test_one_host_changes_nothing() -> None:
    assert compile("tree", "allreduce", 4, hosts=(7, 7, 7, 7)) is compile("tree", "allreduce", 4)
    assert compile("tree", "allreduce", 3, hosts=(7, 2, 7)).hosts == (0, 1, 0)
    assert trace("ring", "allreduce", 3).hosts == ((0, 1, 2),)
    assert trace("ring", "allreduce", 3, hosts=(1, 0, 1)).hosts == ((0, 2), (1,))


def test_what_is_wrong_with_hosts_is_refused() -> None:
    with pytest.raises(ValueError, match="hosts must have a host number for each of 3 ranks, not 2"):
        compile("ring", "allreduce", 3, hosts=(0, 1))
    with pytest.raises(TypeError, match=r"hosts\[1\]"):
        compile("ring", "allreduce", 2, hosts=(0, "b"))  # type: ignore[arg-type]


def test_the_layouts_that_are_verified() -> None:
    assert [layouts(size) for size in (1, 2, 9)] == [[()], [(), (0, 1)], [()]]
    assert layouts(5) == [(), (0, 0, 0, 1, 1), (0, 0, 1, 1, 2), (0, 1, 2, 3, 4), (0, 1, 0, 1, 0)]
    one = ("", 1)
    for hosts, expected in (
        (None, [one, *((f" on {count} hosts", count) for count in (2, 3, 5, 2))]),
        ([1, 4, 6], [one, (" on 4 hosts", 4)]),
    ):
        placements = [Placement.STAGED, Placement.INPLACE]
        reports = list(verify_topology("ring", [5], placements, ["allreduce"], hosts=hosts))
        found = [(report.title, report.hosts) for report in reports]
        assert found == [
            (f"ring allreduce, 5 ranks{where}, {placement.name}", count)
            for placement in placements
            for where, count in expected
        ]
    with pytest.raises(ValueError, match="hosts"):
        verify_topology("tree", [5], hosts=[0])


def in_and_out(schedule: Schedule) -> list[tuple[float, float]]:
    """For each host, what it receives and sends, in units of the message."""
    found = [(0.0, 0.0)] * (max(schedule.hosts) + 1)
    for (of, to), amount in traffic(schedule).items():
        found[of] = (found[of][0], found[of][1] + amount)
        found[to] = (found[to][0] + amount, found[to][1])
    return found


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_ordered_sends_the_message_once_each_way_between_two_hosts(ranks: int) -> None:
    hosts = [0] * ranks + [1] * ranks
    assert in_and_out(compile("ordered", "allreduce", 2 * ranks, hosts=hosts)) == [(1.0, 1.0), (1.0, 1.0)]
    both = traffic(compile("ordered", "allreduce", 5, hosts=(0, 0, 0, 1, 1)))
    assert both == {(0, 1): 1, (1, 0): 1}


@pytest.mark.parametrize(
    "hosts", [(0, 0, 1, 1, 2, 2), (0, 1, 1, 2, 2, 2), (0, 1, 2, 3), (0, 0, 1, 1, 2, 2, 3, 3)], ids=str
)
def test_ordered_sends_the_message_at_most_twice_each_way(hosts: tuple[int, ...]) -> None:
    for collective in ("allreduce", "scan", "reduce", "reduce_scatter"):
        schedule = compile("ordered", collective, len(hosts), 0 if collective == "reduce" else None, hosts=hosts)
        if collective == "scan" and len(set(hosts)) == len(hosts):
            continue  # as direct
        assert max(map(max, in_and_out(schedule))) <= 2.0, schedule.title


@pytest.mark.parametrize("hosts", [(0, 1), (0, 0, 1, 1), (0, 1, 0, 1), (0, 0, 1, 1, 2, 2), (0, 0, 0, 1, 1)], ids=str)
def test_ordered_adds_in_rank_order_and_shares_the_work(hosts: tuple[int, ...]) -> None:
    for small in (False, True):
        schedule = compile("ordered", "allreduce", len(hosts), hosts=hosts, small=small)
        assert verify(schedule).order == "rank"
    schedule = compile("ordered", "allreduce", len(hosts), hosts=hosts)
    if hosts == tuple(sorted(hosts)):  # otherwise contributions cross
        assert {rank for rank, _ in sends(schedule)} == set(range(len(hosts)))


@pytest.mark.parametrize(("ranks", "senders"), [(1, {0, 1}), (2, {0, 2}), (4, {0, 4}), (6, {0, 4, 6, 10})])
def test_short_messages_are_few_and_added_in_rank_order(ranks: int, senders: set[int]) -> None:
    hosts = [0] * ranks + [1] * ranks
    schedule = compile(SHORT_BETWEEN_HOSTS, "allreduce", 2 * ranks, hosts=hosts)
    assert verify(schedule).order == "rank"
    assert {rank for rank, _ in sends(schedule)} == senders
    assert in_and_out(schedule) == [(1.0, 1.0), (1.0, 1.0)]


def test_a_small_message_of_ordered_crosses_in_one_latency() -> None:
    schedule = compile("ordered", "allreduce", 6, hosts=(0, 0, 1, 1, 2, 2), small=True)
    assert all(step.sources[0].initial for _, step in sends(schedule))


@pytest.mark.parametrize("hosts", [(0, 0, 0, 0, 1, 1, 1, 1), (0, 1, 0, 1, 2, 2)], ids=str)
@pytest.mark.parametrize("name", ["allreduce", "scan", "reduce", "broadcast"])
def test_small_contributions_of_a_host_travel_together(name: str, hosts: tuple[int, ...]) -> None:
    schedule = compile("ordered", name, len(hosts), hosts=hosts, small=True)
    pairs = [(hosts[rank], hosts[target.rank]) for rank, step in sends(schedule) for target in step.targets]
    ends = {(rank, target.rank) for rank, step in sends(schedule) for target in step.targets}
    assert len(ends) == len(set(pairs))  # one rank sends all of them, and one receives them
    for mine in schedule.ranks:
        sent = [(step.targets, bool(step.waits)) for step in mine.steps if step.kind == "send"]
        for (targets, _), (following, waits) in itertools.pairwise(sent):
            assert not (targets == following and waits), "in one system call"


def test_on_one_host_ordered_is_direct() -> None:
    for name in info("direct").collectives:
        for small in (False, True):
            one, other = (compile(topology, name, 5, small=small) for topology in ("ordered", "direct"))
            assert one.ranks == other.ranks


@pytest.mark.parametrize("hosts", [(0, 0, 1, 1), (0, 1, 0, 1), (0, 0, 1, 1, 2, 2)], ids=str)
def test_hierarchical_sends_what_its_outer_topology_sends(hosts: tuple[int, ...]) -> None:
    count = len(set(hosts))
    for outer in ("ring", "direct", "halving_doubling"):
        schedule = compile(f"hierarchical(outer={outer!r})", "allreduce", len(hosts), hosts=hosts)
        alone = compile(outer, "allreduce", count, hosts=range(count))
        assert traffic(schedule) == traffic(alone)
        assert {rank for rank, _ in sends(schedule)} == set(range(len(hosts)))


@pytest.mark.parametrize(
    ("topology", "hosts"),
    [
        ("hierarchical(inner='tree')", (0, 0, 1, 1)),  # without reduce_scatter
        ("hierarchical", (0, 0, 0, 1, 1)),
        ("hierarchical(outer='random')", (0, 1, 1, 2, 2, 2)),
        ("hierarchical(inner='ring', outer='tree')", (0, 0, 1, 1, 2, 2)),
    ],
)
def test_hierarchical_reduces_to_leaders_otherwise(topology: str, hosts: tuple[int, ...]) -> None:
    for name in ("allreduce", "broadcast", "reduce"):
        for root in range(len(hosts)) if COLLECTIVES[name].rooted else (None,):
            schedule = compile(topology, name, len(hosts), root, hosts=hosts)
            verify(schedule)
            outer = get(topology).outer
            alone = compile(outer, name, len(set(hosts)), root and hosts[root], hosts=range(len(set(hosts))))
            assert traffic(schedule) == traffic(alone)


def test_hierarchical_lacks_what_one_of_its_topologies_lacks() -> None:
    with pytest.raises(TopologyError, match="tree has no allgather"):
        compile("hierarchical(outer='tree')", "allgather", 4, hosts=ACROSS)
    with pytest.raises(TopologyError, match="hierarchical has no alltoall"):
        compile("hierarchical", "alltoall", 4, hosts=ACROSS)


def of_kind(schedule: Schedule, rank: int, kind: str) -> int:
    return next(index for index, step in enumerate(schedule.ranks[rank].steps) if step.kind == kind)


def broken_forms() -> Iterator[tuple[Schedule, str]]:
    good = compile("direct", "allreduce", 4, hosts=ACROSS)
    send, recv = of_kind(good, 0, "send"), of_kind(good, 0, "recv")
    sent, received = good.ranks[0].steps[send], good.ranks[0].steps[recv]
    last = len(good.ranks[0].steps) - 1
    yield with_step(good, 0, recv, waits=()), "its first wait is not for its message"
    yield with_step(good, 0, recv, sources=(Source(1, 1),), waits=(Wait(1, 1),)), "rank 1 is not on another host"
    yield with_step(good, 0, recv, sources=(Source(2, 3),), waits=(Wait(2, 3),)), "step 2 of rank 2 does not send it"
    yield with_step(good, 0, recv, sources=(Source(2, 2),), waits=(Wait(2, 2),)), "step 1 of rank 2 does not send it"
    beyond = good.stride + 1  # the count of the first step in the second tile, which has not run when it is due
    yield (
        with_step(good, 0, recv, sources=(Source(2, beyond),), waits=(Wait(2, beyond),)),
        f"no step with count {beyond}",
    )
    yield with_step(good, 0, recv, sources=(Source(2, 0),), waits=(Wait(2, 0),)), "no step with count 0"
    yield with_step(good, 2, send, targets=(Target(1, 0),)), "step 0 of rank 2 does not send it"
    yield with_step(good, 0, recv, chunk=1), "does not send it"
    yield with_step(good, 0, recv, targets=(Target(1, 0),)), "writes the scratch of rank 1"
    yield with_step(good, 0, recv, complete=True), "changes what it transfers"
    yield with_step(good, 0, send, targets=(*sent.targets, Target(3, 0))), "rank 3 receives it 0 times"
    yield with_step(good, 0, send, sources=(Source(1, 0),)), "transfers memory of rank 1"
    yield with_step(good, 0, send, targets=(*sent.targets, Target(1, 0))), "rank 1 is not on another host"
    yield with_step(good, 0, send, targets=(*sent.targets, Target(4, 0))), "rank 4 is not on another host"
    yield with_step(good, 0, send, sources=(*sent.sources, Source(0, 0))), "transfers from one place"
    yield with_step(good, 0, recv, targets=(*received.targets, Target(0, 0))), "and to one place of a rank"
    yield with_step(good, 0, recv, waits=(*received.waits, Wait(3, 1))), "rank 3, which is on another host"
    yield with_step(good, 0, send, early=True), "only a recv is early"
    yield with_step(good, 0, last, waits=(Wait(2, received.sources[0].place),)), "rank 2, which is on another host"
    yield with_step(good, 0, last, sources=(Source(2, 0),)), "touches memory of rank 2, which is on another host"
    yield with_step(good, 0, last, lag=0), "lags by 0 tiles, after a step that lags by"
    yield with_rank(good, 0, exit_waits=(Wait(3, 0),)), "rank 3, which is on another host"
    yield with_rank(good, 0, readers=(Wait(1, 2 * good.stride + 1),)), "waits for 23 of 11 steps of rank 1"
    yield dataclasses.replace(good, hosts=(0, 0, 1)), "need a host each"
    shared = compile("direct", "allreduce", 4, placement=Placement.WINDOW, hosts=ACROSS)
    last = len(shared.ranks[0].steps) - 1
    for place in (IN, OUT):
        wrong = with_step(shared, 0, last, sources=(Source(2, place),))
        yield wrong, "touches memory of rank 2, which is on another host"
    yield with_step(shared, 0, last, targets=(Target(3, OUT),)), "touches memory of rank 3, which is on another host"
    steps = list(good.ranks[0].steps)
    steps[-1] = dataclasses.replace(received, lag=steps[-1].lag, consumed=True)
    yield with_rank(good, 0, steps=tuple(steps)), "rank 0 receives it 2 times"


@pytest.mark.parametrize(
    ("wrong", "words"), list(broken_forms()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_what_breaks_the_form_is_refused(wrong: Schedule, words: str) -> None:
    with pytest.raises(VerificationError, match=words):
        verify(wrong)


@pytest.mark.parametrize("hosts", [ACROSS, (0, 1, 0, 1), (0, 1)], ids=str)
@pytest.mark.parametrize("topology", ["direct", "ring", "tree", "halving_doubling"])
def test_a_wait_removed_by_hand_is_a_race(topology: str, hosts: tuple[int, ...]) -> None:
    for small, placement in itertools.product((False, True), (Placement.STAGED, Placement.WINDOW, Placement.INPLACE)):
        schedule = compile(topology, "allreduce", len(hosts), None, placement, small, hosts)
        for what, wrong in without_one_wait(schedule):
            with pytest.raises(VerificationError, match=r"race|holds nothing yet|its first wait"):
                verify(wrong)
                pytest.fail(f"not caught: {what}")


def test_without_precautions_there_are_races(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler moves to a cell what is sent from or received in a place that is in use."""
    monkeypatch.setattr(messages, "_find_hazards", lambda *_: None)
    program = trace("direct", "allreduce", 2, small=True, hosts=(0, 1))
    with pytest.raises(VerificationError, match=r"race on chunk 0 of out\[1\]: nothing orders .* in\[1\] to rank 0"):
        verify(compile_program(program, small=True))
    program = trace("star", "exscan", 4, hosts=ACROSS)
    with pytest.raises(VerificationError, match=r"out\[2\]: nothing orders .* in\[2\] to rank 0\) .* from rank 0"):
        verify(compile_program(program))
    program = trace("direct", "allreduce", 2, small=True, hosts=(0, 1))
    with pytest.raises(VerificationError, match=r"race on chunk 0 of out\[1\]: nothing orders .* out\[1\] to rank 0"):
        verify(compile_program(program, Placement.INPLACE, small=True))


def two_messages() -> Schedule:
    """Rank 0 sends two messages to rank 1 of another host."""
    p = Program("broadcast", 2, 0, (0, 1))
    for c in p.chunks(2):
        p[1, c] = p[0, c]
    return compile_program(p, small=True)


def test_a_message_without_a_place_blocks_those_behind_it() -> None:
    schedule = two_messages()
    first, second = schedule.ranks[1].steps
    assert [first.sources[0].place, second.sources[0].place] == [1, 2] and first.early and second.early
    turned = with_rank(schedule, 1, steps=(second, first))
    verify(turned)  # both have a place from the beginning
    late = with_rank(schedule, 1, steps=(second, dataclasses.replace(first, early=False)))
    with pytest.raises(VerificationError, match=r"deadlock: step 0 of rank 1 .* waits for rank 0 to finish step 1"):
        verify(late)
    with pytest.raises(Stuck):
        Interpreter(late, 2, seed=1).run([inputs_for(late, 2)])
    verify(with_rank(schedule, 1, steps=(dataclasses.replace(first, early=False), second)))
