"""The compiler's output: the number of copies and waits, where values are stored, and the flat table; its clocks."""

from __future__ import annotations

import gc
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycollective.errors import TopologyError
from pycollective.schedule import Program, compile, compile_program, topology, verify
from pycollective.schedule.compiler.schedule import TABLE_VERSION, Placement, Schedule
from pycollective.schedule.compiler.steps import IN, OUT, Source, Target, Wait
from pycollective.schedule.compiler.waits import UNKNOWN, VectorClocks
from pycollective.schedule.mixing import evaluate


def touched(schedule: Schedule, rank: int) -> int:
    """Chunks read and written by a rank per tile."""
    return sum(len(step.sources) + len(step.targets) for step in schedule.ranks[rank].steps)


def test_direct_staged_copies_in_only_what_others_need() -> None:
    n = 5
    schedule = compile("direct", "allreduce", n)
    for rank, mine in enumerate(schedule.ranks):
        copies_in, (reduction,), copies_out = mine.steps[: n - 1], mine.steps[n - 1 : n], mine.steps[n:]
        assert {step.chunk for step in copies_in} == set(range(n)) - {rank}
        assert all(step.sources == (Source(rank, IN, True),) and not step.complete for step in copies_in)
        assert reduction.complete and reduction.chunk == rank
        assert [source.rank for source in reduction.sources] == list(range(n))
        assert reduction.sources[rank] == Source(rank, IN, True)  # straight from the private input
        assert [target.place for target in reduction.targets] == [OUT, n - 1]
        # every rank starts with the copy from its neighbor
        assert [step.sources[0].rank for step in copies_out] == [(rank + 1 + i) % n for i in range(n - 1)]
        assert all(step.targets == (Target(rank, OUT),) and not step.sources[0].initial for step in copies_out)


def test_direct_on_windows_is_one_step() -> None:
    for placement in (Placement.WINDOW, Placement.INPLACE):
        schedule = compile("direct", "allreduce", 4, placement=placement)
        place = OUT if placement.inplace else IN
        for rank, mine in enumerate(schedule.ranks):
            (step,) = mine.steps
            assert step.sources == tuple(Source(q, place, True) for q in range(4))
            assert step.targets == tuple(Target(q, OUT) for q in range(4))
            assert set(step.waits) == {Wait(q, 0) for q in range(4) if q != rank}
            assert set(mine.exit_waits) == {Wait(q, 1) for q in range(4) if q != rank}
        assert schedule.cells == 0


def test_one_shot_in_place_computes_before_it_overwrites() -> None:
    schedule = compile("direct", "allreduce", 3, placement=Placement.INPLACE, small=True)
    for rank, mine in enumerate(schedule.ranks):
        compute, copy = mine.steps
        assert compute.complete and compute.targets == (Target(rank, 0),)
        assert copy.sources == (Source(rank, 0),) and copy.targets == (Target(rank, OUT),) and not copy.complete
        assert set(copy.waits) == {Wait(q, 1) for q in range(3) if q != rank}


def test_a_value_for_many_is_stored_once_and_pushes_become_pulls() -> None:
    p = Program("broadcast", 4, 1)
    p.chunks(1)
    p[p.ranks, 0] = p.copy(p[1, 0], at=1)
    schedule = compile_program(p, Placement.STAGED)
    assert [len(mine.steps) for mine in schedule.ranks] == [1, 1, 1, 1]
    assert schedule.ranks[1].steps[0].targets == (Target(1, OUT), Target(1, 0))
    shared = compile_program(p, Placement.WINDOW_OUT)
    assert shared.ranks[1].steps[-1].targets == tuple(Target(r, OUT) for r in (0, 2, 3))
    assert [len(mine.steps) for mine in shared.ranks] == [0, 2, 0, 0]


def test_a_pushed_chain_is_a_chain_of_pulls_where_outputs_are_private() -> None:
    p = Program("broadcast", 4, 0)
    p.chunks(1)
    for hop in range(1, 4):
        p[hop, 0] = p.copy(p[hop - 1, 0], at=hop - 1)
    schedule = compile_program(p, Placement.STAGED)
    verify(schedule)
    assert [[step.sources[0].rank for step in mine.steps] for mine in schedule.ranks] == [[0], [0], [1], [2]]


def test_a_private_output_may_be_the_input() -> None:
    """Rank 1 needs its input until the end of a long chain, though its output could be written at once."""
    p = Program("broadcast", 3, 1)
    p.chunks(1)
    p[0, 0] = p[1, 0]
    p[2, 0] = p.sum((p[0, 0], p[0, 0]), at=0)
    for _ in range(3):
        p[2, 0] = p.sum((p[2, 0], p[2, 0]), at=2)
    p[2, 0] = p.sum((p[1, 0], p[2, 0]), at=1)
    p[1, 0] = p.sum((p[0, 0], p[0, 0]))
    steps = compile_program(p, Placement.STAGED).ranks[1].steps
    last_read = max(i for i, step in enumerate(steps) for source in step.sources if source.place == IN)
    first_write = min(i for i, step in enumerate(steps) for target in step.targets if target.place == OUT)
    assert last_read < first_write
    windows = compile_program(p, Placement.WINDOW_IN).ranks[1].steps  # there they are never the same
    assert windows[0].targets == (Target(1, OUT),)


def test_unused_values_are_dropped() -> None:
    p = Program("reduce", 3, 0)
    p.chunks(1)
    p[2, 0] += p[1, 0]  # overwritten before it is read
    p[2, 0] = p[1, 0]
    p[1, 0] = p.sum(p[q, 0] for q in p.ranks)  # never read
    p[0, 0] = p[0, 0]  # nothing changes
    p[0, 0] += p[2, 0]
    for placement in Placement:
        schedule = compile_program(p, placement)
        assert len(schedule.ranks[0].steps) == 1
        assert all(len(step.sources) == 1 for mine in schedule.ranks[1:] for step in mine.steps)


def test_a_copy_of_what_is_there_already_is_left_out() -> None:
    p = Program("broadcast", 3, 2)
    p.chunks(1)
    p[0, 0] = p[2, 0]
    p[p.ranks, 0] = p[0, 0]
    schedule = compile_program(p, Placement.INPLACE)
    assert [len(mine.steps) for mine in schedule.ranks] == [1, 1, 0]


@pytest.mark.parametrize("placement", Placement)
@pytest.mark.parametrize("collective", ["allreduce", "reduce_scatter", "reduce"])
def test_one_rank_keeps_the_step_that_scales(placement: Placement, collective: str) -> None:
    (mine,) = compile("direct", collective, 1, placement=placement).ranks
    (step,) = mine.steps
    assert step.complete and step.sources == (Source(0, OUT if placement.inplace else IN, True),)
    assert step.targets == (Target(0, OUT),)


def test_one_rank_copies_what_needs_no_scaling() -> None:
    assert compile("direct", "broadcast", 1, placement=Placement.INPLACE).ranks[0].steps == ()
    (step,) = compile("direct", "broadcast", 1, placement=Placement.WINDOW).ranks[0].steps
    assert not step.complete and not step.sources[0].initial


def test_programs_written_chunk_by_chunk_run_step_by_step() -> None:
    """A ring of n ranks takes 2(n-1) steps per rank, each after the one of its neighbor."""
    n = 6
    schedule = compile("ring", "allreduce", n, placement=Placement.WINDOW)
    for rank, mine in enumerate(schedule.ranks):
        assert len(mine.steps) == 2 * (n - 1)
        assert [step.chunk for step in mine.steps] == [(rank - 1 - i) % n for i in range(2 * (n - 1))]
        assert all(wait.peer == (rank - 1) % n for step in mine.steps[1 : n - 1] for wait in step.waits)


def test_implied_waits_are_dropped() -> None:
    """In a ring each step waits for one neighbor; what that one has waited for is known."""
    schedule = compile("ring", "allreduce", 8)
    assert all(len(step.waits) <= 1 for mine in schedule.ranks for step in mine.steps)
    assert all(mine.exit_waits == () for mine in schedule.ranks)


def test_only_awaited_steps_are_published() -> None:
    schedule = compile("ring", "broadcast", 4, 0, Placement.WINDOW)
    assert {step.consumed for mine in schedule.ranks for step in mine.steps} == {False, True}
    awaited = {
        (wait.peer, wait.count)
        for mine in schedule.ranks
        for waits in (mine.exit_waits, mine.readers, *(step.waits for step in mine.steps))
        for wait in waits
    }
    for rank, mine in enumerate(schedule.ranks):
        for index, step in enumerate(mine.steps):
            assert step.consumed == ((rank, index + 1) in awaited)


def parse(table: list[int]) -> tuple[list[int], list[Wait], list[Wait], list[tuple[object, ...]]]:
    """The flat table, read word by word like the executor."""
    words = iter(table)

    def take(count: int) -> tuple[int, ...]:
        return tuple(next(words) for _ in range(count))

    header = list(take(11))
    exits = [Wait(*take(2)) for _ in range(header[7])]
    readers = [Wait(*take(2)) for _ in range(header[8])]
    steps: list[tuple[object, ...]] = []
    for _ in range(header[6]):
        chunk, flags, n_waits, n_sources, n_targets, n_consumers, lag = take(7)
        waits = tuple(Wait(*take(2)) for _ in range(n_waits))
        sources = tuple(
            Source(rank, place, bool(initial)) for rank, place, initial in (take(3) for _ in range(n_sources))
        )
        targets = tuple(Target(*take(2)) for _ in range(n_targets))
        consumers = take(n_consumers)
        halves = array("i", take(2 * n_sources if flags & 4 else 0))
        weights = tuple(memoryview(halves).cast("B").cast("d"))
        kind = {0: "combine", 8: "send", 16: "recv"}[flags & 24]
        marks = (bool(flags & 1), bool(flags & 2), bool(flags & 32))
        steps.append((chunk, sources, targets, waits, marks, kind, lag, weights, consumers))
    assert next(words, None) is None
    return header, exits, readers, steps


@pytest.mark.parametrize("kind", ["wheel", "mix", "hosts"])
@pytest.mark.parametrize("placement", Placement)
def test_the_table_matches_the_schedule(placement: Placement, kind: str) -> None:
    if kind == "hosts":
        schedule = compile("wheel", "allreduce", 5, hosts=(0, 0, 1, 1, 2))
    elif kind == "mix":
        schedule = evaluate(lambda rank, size, step: {rank: 0.25, (rank - 1) % size: 0.75}, 5, 0).schedule(placement)
    else:
        schedule = compile(kind, "allreduce", 5, placement=placement)
    for rank, mine in enumerate(schedule.ranks):
        table = schedule.table(rank)
        assert table.typecode == "i" and table.itemsize == 4
        header, exits, readers, steps = parse(table.tolist())
        assert header[:6] == [TABLE_VERSION, 5, rank, schedule.chunks, schedule.stride, schedule.cells]
        assert header[10] == schedule.depth and (schedule.depth > 1) == (kind == "hosts")
        assert (tuple(exits), tuple(readers)) == (mine.exit_waits, mine.readers)
        for number, (step, decoded) in enumerate(zip(mine.steps, steps, strict=True), 1):
            waiting = tuple(
                reader
                for reader, other in enumerate(schedule.ranks)
                for waits in [other.exit_waits, other.readers, *(s.waits for s in other.steps if s.kind != "recv")]
                if Wait(rank, step.lag * schedule.stride + number) in waits
            )
            marks = (step.complete, step.consumed, step.early)
            expected = (step.chunk, step.sources, step.targets, step.waits, marks, step.kind, step.lag, step.weights)
            assert decoded == (*expected, tuple(sorted(set(waiting))))


def test_the_table_tells_whether_outputs_are_read_again() -> None:
    """If they are not, the executor may write them past the caches."""
    assert compile("direct", "allreduce", 4, placement=Placement.WINDOW).table(0)[9] == 1
    assert compile("ring", "allreduce", 4, placement=Placement.STAGED).table(0)[9] == 1
    assert compile("ring", "allreduce", 4, placement=Placement.WINDOW).table(0)[9] == 0


def test_stride_and_cells_are_the_most_of_any_rank() -> None:
    schedule = compile("star", "allreduce", 5)
    assert schedule.stride == max(len(mine.steps) for mine in schedule.ranks)
    places = [target.place for mine in schedule.ranks for step in mine.steps for target in step.targets]
    assert schedule.cells == max(places) + 1
    assert compile("ring", "broadcast", 1, placement=Placement.INPLACE).stride == 1


def test_schedules_are_cached_by_all_parameters() -> None:
    assert compile("ring", "allreduce", 3) is compile("ring", "allreduce", 3, root=None)
    assert compile("ring", "allreduce", 3) is not compile("ring", "allreduce", 3, placement=Placement.WINDOW)
    assert compile("ring", "allreduce", 3) is compile("ring", "allreduce", 3, small=True)  # it has no small variant
    assert compile("tree", "allreduce", 3) is not compile("tree", "allreduce", 3, small=True)
    assert compile("star", "allreduce", 4) is compile("star(hub=0)", "allreduce", 4)
    assert compile("star(hub=1)", "allreduce", 4).topology == "star(hub=1)"


@given(st.integers(0, 300), st.integers(1, 9), st.data())
def test_joined_clocks_know_the_larger_number_of_each_rank(most: int, size: int, data: st.DataObject) -> None:
    clocks, packed = VectorClocks(size, most), []
    both = [data.draw(st.lists(st.integers(UNKNOWN, most), min_size=size, max_size=size)) for _ in range(2)]
    for numbers in both:
        clock = 0
        for rank, count in enumerate(numbers):
            if count != UNKNOWN:
                clock = clocks.join(clock, clocks.when(rank, count))
        packed.append(clock)
    joined = clocks.join(*packed)
    for rank, counts in enumerate(zip(*both, strict=True)):
        for count in range(most + 1):
            assert clocks.knows(joined, rank, count) == (count <= max(counts))


def test_compiling_leaves_no_cyclic_garbage_and_collection_as_it_was() -> None:
    @topology("of_this_test", replace=True)
    class Wrong:
        def allreduce(self, p: Program) -> None:
            raise TopologyError("wrong")

    gc.collect()
    gc.disable()
    try:
        compile("halving_doubling", "allreduce", 11, placement=Placement.WINDOW)
        assert gc.collect() < 50  # not one for each value or step
        assert not gc.isenabled()
    finally:
        gc.enable()
    compile("halving_doubling", "allreduce", 12)
    assert gc.isenabled()
    with pytest.raises(TopologyError):
        compile(Wrong, "allreduce", 2)
    assert gc.isenabled()
