"""The verifier rejects incorrect schedules, and names rank, chunk and steps."""

from __future__ import annotations

import dataclasses
import linecache
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pycollective import topology
from pycollective.errors import VerificationError
from pycollective.schedule import Program, compile, compile_program, verify
from pycollective.schedule.compiler.schedule import Placement, Schedule
from pycollective.schedule.compiler.steps import IN, OUT, Source, Step, Target, Wait
from pycollective.schedule.language.registry import Order


def with_step(schedule: Schedule, rank: int, index: int, **changes: object) -> Schedule:
    """The schedule with one step changed."""
    mine = schedule.ranks[rank]
    step = dataclasses.replace(mine.steps[index], **changes)  # type: ignore[arg-type]
    return with_rank(schedule, rank, steps=(*mine.steps[:index], step, *mine.steps[index + 1 :]))


def with_rank(schedule: Schedule, rank: int, **changes: object) -> Schedule:
    """The schedule with one rank's part changed."""
    mine = dataclasses.replace(schedule.ranks[rank], **changes)  # type: ignore[arg-type]
    return dataclasses.replace(schedule, ranks=(*schedule.ranks[:rank], mine, *schedule.ranks[rank + 1 :]))


def program(write: Callable[[Program], None], collective: str = "allreduce", size: int = 4) -> Program:
    p = Program(collective, size)
    write(p)
    return p


def without_one_wait(schedule: Schedule) -> Iterator[tuple[str, Schedule]]:
    """Every way to remove one wait: from a step, from the end of the call, from the readers of scratch."""
    for rank, mine in enumerate(schedule.ranks):
        for index, step in enumerate(mine.steps):
            for wait in step.waits:
                waits = tuple(other for other in step.waits if other != wait)
                yield f"rank {rank} step {index} {wait}", with_step(schedule, rank, index, waits=waits)
        for wait in mine.exit_waits:
            if wait.count:  # a 0 does not prevent races: no rank returns before its readers have entered
                waits = tuple(other for other in mine.exit_waits if other != wait)
                yield f"rank {rank} exit {wait}", with_rank(schedule, rank, exit_waits=waits)
        for wait in mine.readers:
            readers = tuple(other for other in mine.readers if other != wait)
            yield f"rank {rank} readers {wait}", with_rank(schedule, rank, readers=readers)


CASES = [("ring", "allreduce", 4, None, False), ("tree", "allreduce", 5, None, False)]
CASES += [("wheel", "allreduce", 5, None, False), ("halving_doubling", "allreduce", 5, None, False)]
CASES += [("halving_doubling", "allreduce", 5, None, True), ("direct", "allreduce", 4, None, False)]
CASES += [("direct", "allreduce", 3, None, True), ("direct", "alltoall", 3, None, False)]
CASES += [("tree", "broadcast", 6, 2, False), ("star(hub=1)", "reduce", 4, 3, False)]


@pytest.mark.parametrize("placement", Placement)
@pytest.mark.parametrize(("topology", "collective", "size", "root", "small"), CASES)
def test_a_wait_removed_by_hand_is_a_race(
    topology: str, collective: str, size: int, root: int | None, small: bool, placement: Placement
) -> None:
    schedule = compile(topology, collective, size, root, placement, small)
    verify(schedule)
    weakened = list(without_one_wait(schedule))
    assert weakened
    for what, wrong in weakened:
        with pytest.raises(VerificationError, match=r"race|holds nothing yet"):
            verify(wrong)
            pytest.fail(f"not caught: {what}")


def test_a_race_names_chunk_and_both_steps() -> None:
    wrong = with_step(compile("ring", "allreduce", 4), 2, 1, waits=())
    with pytest.raises(VerificationError) as caught:
        verify(wrong)
    assert str(caught.value) == (
        "ring allreduce, 4 ranks, STAGED: race on chunk 1 of scratch[1] cell 0: nothing orders"
        " step 0 of rank 1 (chunk 1: scratch[1] cell 0 = in[1]) and"
        f" step 1 of rank 2 (chunk 1: scratch[2] cell 2 = in[2] + scratch[1] cell 0) [{caught.value.lines[0]}]"
    )
    (line,) = caught.value.lines  # the first of the two copies the input in, which no statement specifies
    file, _, number = line.rpartition(":")
    assert Path(file).read_text().splitlines()[int(number) - 1].strip() == "p[c + hop, c] += p[c + hop - 1, c]"


def test_a_staged_call_must_not_rely_on_one_array_nor_on_two() -> None:
    schedule = compile("direct", "broadcast", 1, 0)
    with pytest.raises(VerificationError, match="rank 0, chunk 0: nothing is written to its output"):
        verify(with_rank(schedule, 0, steps=()))
    schedule = compile("direct", "allreduce", 2, small=True)
    late = Step(0, (Source(0, IN, True),), (Target(0, schedule.cells),))  # reads the input when the output is written
    longer = with_rank(schedule, 0, steps=(*schedule.ranks[0].steps, late))
    with pytest.raises(VerificationError, match=r"step 2 of rank 0 .* in\[0\] is marked initial, but not raw"):
        verify(dataclasses.replace(longer, stride=3, cells=schedule.cells + 1))


def test_in_place_input_and_output_are_the_same_memory() -> None:
    schedule = compile("direct", "allreduce", 3, placement=Placement.WINDOW, small=True)
    with pytest.raises(VerificationError, match=r"race on chunk 0 of (in|out)"):
        verify(dataclasses.replace(schedule, placement=Placement.INPLACE))


def test_leaving_too_early_is_a_race() -> None:
    schedule = compile("direct", "allreduce", 3, placement=Placement.WINDOW)
    with pytest.raises(VerificationError, match=r"rank 1 leaves the call while step 0 of rank 2|rank 1 has left"):
        verify(with_rank(schedule, 1, exit_waits=(Wait(0, 1),)))


def test_touching_a_buffer_before_its_rank_enters_is_a_race() -> None:
    schedule = compile("direct", "allreduce", 2, placement=Placement.WINDOW)
    with pytest.raises(VerificationError, match=r"chunk 0 of in\[1\]: step 0 of rank 0 .* may not have entered"):
        verify(with_step(schedule, 0, 0, waits=()))


def test_using_a_slot_again_too_early_is_a_race() -> None:
    """Also if the tile in between happens to wait for the readers: it may belong to another collective."""
    schedule = compile("direct", "allreduce", 3)
    with pytest.raises(VerificationError, match=r"rank 0 uses a slot of its scratch again while step \d of rank [12]"):
        verify(with_rank(schedule, 0, readers=()))


def test_a_deadlock_names_the_waiting_ranks() -> None:
    schedule = compile("direct", "allreduce", 2, small=True)
    ranks = tuple(
        dataclasses.replace(mine, steps=tuple(dataclasses.replace(step, consumed=True) for step in mine.steps[::-1]))
        for mine in schedule.ranks
    )
    with pytest.raises(VerificationError) as caught:
        verify(dataclasses.replace(schedule, ranks=ranks))
    assert str(caught.value) == (
        "direct allreduce (small), 2 ranks, STAGED: deadlock:"
        " step 0 of rank 0 (chunk 0: out[0] = in[0] + scratch[1] cell 0) waits for rank 1 to finish step 0;"
        " step 0 of rank 1 (chunk 0: out[1] = scratch[0] cell 0 + in[1]) waits for rank 0 to finish step 0"
        f" [{', '.join(caught.value.lines)}]"
    )


def test_a_wait_for_what_is_never_published_is_refused() -> None:
    schedule = compile("ring", "broadcast", 3, 0)
    for wait in schedule.ranks[1].steps[0].waits:
        hushed = with_step(schedule, wait.peer, wait.count - 1, consumed=False)
        with pytest.raises(VerificationError, match="step 0 of rank 0, which is not published"):
            verify(hushed)


def ring_that_starts_late(p: Program) -> None:
    for c in p.chunks(p.size):
        for hop in range(2, p.size):  # one hop too few
            p[c + hop, c] += p[c + hop - 1, c]
        for hop in range(p.size, 2 * p.size - 1):
            p[c + hop, c] = p[c + hop - 1, c]


def sum_that_is_not_simultaneous(p: Program) -> None:
    for c in p.chunks(1):
        for r in p.ranks:
            p[r, c] = p.sum(p[q, c] for q in p.ranks)


def ranks_left_out(p: Program) -> None:
    for c in p.chunks(1):
        p[0, c] = p.sum(p[q, c] for q in p.ranks)
        p[(1, 2), c] = p[0, c]


def test_a_contribution_that_is_missing_is_named() -> None:
    with pytest.raises(VerificationError) as caught:
        verify(compile_program(program(ring_that_starts_late)))
    words = str(caught.value)
    assert "rank 0, chunk 0: the result lacks the contribution of rank 0, written by step" in words
    assert "of rank 0 (chunk 0: out[0]" in words


def test_the_statement_that_loses_a_contribution_is_named() -> None:
    @topology("loses", order="chunk")
    class Loses:
        """A ring that overwrites; with two ranks left out."""

        def allreduce(self, p: Program) -> None:
            for c in p.chunks(1):
                for r in range(1, p.size):
                    p[r, c] = p[r - 1, c]
                p[p.ranks, c] = p[-1, c]

        def reduce(self, p: Program, root: int) -> None:
            for c in p.chunks(1):
                p[(root + 1, root + 2), c] = p.sum(p[q, c] for q in p.ranks)

    with pytest.raises(
        VerificationError, match=r"rank 1 is lost: its last copy is overwritten at test_verifier\.py:"
    ) as error:
        verify(compile(Loses, "allreduce", 4))
    file, _, line = error.value.lines[0].rpartition(":")
    assert linecache.getline(file, int(line)).strip() == "p[r, c] = p[r - 1, c]"
    with pytest.raises(VerificationError, match="at the end the contribution of rank 1 is at ranks 1, 2"):
        verify(compile(Loses, "reduce", 4, 0))


def test_a_contribution_that_comes_twice_is_named_with_the_step_that_doubles_it() -> None:
    with pytest.raises(VerificationError) as caught:
        verify(compile_program(program(sum_that_is_not_simultaneous)))
    words = str(caught.value)
    assert "rank 1, chunk 0: the result has the contributions of ranks 1, 2, 3 twice" in words
    assert "step 1 of rank 1 (chunk 0: " in words and "combines it with itself" in words


def test_a_rank_left_out_is_named() -> None:
    with pytest.raises(VerificationError, match="rank 3, chunk 0: the result lacks the contributions of ranks 0, 1, 2"):
        verify(compile_program(program(ranks_left_out)))
    with pytest.raises(VerificationError, match="rank 1, chunk 0: nothing is written to its output"):
        verify(compile_program(Program("broadcast", 2, 0)))


def in_rank_order(p: Program) -> None:
    for c in p.chunks(2):
        p[p.ranks, c] = p.sum(p[q, c] for q in p.ranks)


def always_backwards(p: Program) -> None:
    for c in p.chunks(2):
        p[p.ranks, c] = p.sum(p[q, c] for q in reversed(p.ranks))


def from_the_chunk_on(p: Program) -> None:
    for c in p.chunks(2):
        p[p.ranks, c] = p.sum(p[c + q, c] for q in p.ranks)


def from_the_rank_on(p: Program) -> None:
    p.chunks(2)
    for c in range(2):
        p[0, c] = p.sum(p[q, c] for q in p.ranks)
        p[(1, 2, 3), c] = p.copy(p[0, c])


def by_pairs(p: Program) -> None:
    """Recursive doubling: rank 1 adds rank 0 to itself where rank 0 adds rank 1, which is the same number."""
    for c in p.chunks(1):
        p[(0, 1), c] = p.sum((p[0, c], p[1, c]))
        p[(2, 3), c] = p.sum((p[3, c], p[2, c]))
        p[(0, 2), c] = p.sum((p[0, c], p[2, c]))
        p[(1, 3), c] = p.sum((p[3, c], p[1, c]))


def test_a_foreign_contribution_is_named() -> None:
    with pytest.raises(VerificationError, match="rank 0, chunk 0: the result has the contribution of rank 1"):
        verify(compile_program(program(in_rank_order, "scan", 2)))


STRENGTH: tuple[Order, ...] = ("chunk", "fixed", "rank")
PROVEN = {
    "rank": (in_rank_order, from_the_rank_on),
    "fixed": (always_backwards, by_pairs),
    "chunk": (from_the_chunk_on,),
}


@pytest.mark.parametrize(("proven", "write"), [(order, write) for order, some in PROVEN.items() for write in some])
@pytest.mark.parametrize("placement", Placement)
def test_the_claim_about_order_is_proved(write: Callable[[Program], None], proven: Order, placement: Placement) -> None:
    schedule = compile_program(program(write), placement)
    assert verify(schedule).order == proven
    for claim in STRENGTH:
        if STRENGTH.index(claim) <= STRENGTH.index(proven):
            verify(schedule, claim)
        else:
            with pytest.raises(VerificationError, match=f"claims order '{claim}', but it is '{proven}' at most"):
                verify(schedule, claim)


def test_different_orders_on_different_ranks_break_every_claim() -> None:
    schedule = compile("direct", "allreduce", 3, placement=Placement.WINDOW, small=True)
    step = schedule.ranks[1].steps[0]
    turned = with_step(schedule, 1, 0, sources=step.sources[::-1])
    with pytest.raises(VerificationError, match="claims order 'rank', but ranks reduce the same chunk in different"):
        verify(turned)
    assert verify(dataclasses.replace(turned, topology="")).order == "none"


STAGED_RING = compile("ring", "allreduce", 3)


def marked(initial: bool) -> tuple[Source, ...]:
    return tuple(dataclasses.replace(s, initial=initial) for s in STAGED_RING.ranks[0].steps[2].sources)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (with_step(STAGED_RING, 0, 2, complete=False), "rank 0, chunk 1: the result is never marked complete"),
        (with_step(STAGED_RING, 0, 3, complete=True), "completes what was complete already"),
        (with_step(STAGED_RING, 0, 2, sources=marked(False)), r"in\[0\] is raw, but not marked initial"),
        (with_step(STAGED_RING, 0, 2, sources=marked(True)), "is marked initial, but not raw"),
        (with_step(STAGED_RING, 0, 0, targets=(Target(0, -1),)), "writes an input"),
        (with_step(STAGED_RING, 0, 0, targets=(Target(1, 0),)), "writes the scratch of rank 1"),
        (with_step(STAGED_RING, 0, 0, targets=(Target(1, OUT),)), "private buffer of rank 1"),
        (with_step(STAGED_RING, 0, 0, targets=(Target(0, 99),)), "no such place: rank 0, place 99"),
        (with_step(STAGED_RING, 0, 0, sources=(Source(3, 0),)), "no such place: rank 3"),
        (with_step(STAGED_RING, 0, 0, sources=()), "needs a source"),
        (with_step(STAGED_RING, 0, 0, chunk=3), "one of 3 chunks"),
        (with_step(STAGED_RING, 0, 0, waits=(Wait(0, 1),)), "waits for rank 0"),
        (with_step(STAGED_RING, 0, 1, waits=(Wait(2, 9),)), "waits for 9 of 5 steps of rank 2"),
        (dataclasses.replace(STAGED_RING, stride=2), "exceed the stride 2"),
        (with_step(STAGED_RING, 0, 0, sources=(Source(0, 3),)), "scratch.0. cell 3 holds nothing yet"),
    ],
)
def test_what_breaks_the_form_is_refused(wrong: Schedule, words: str) -> None:
    with pytest.raises(VerificationError, match=words):
        verify(wrong)


def test_no_rank_has_more_than_its_collective_gives_it() -> None:
    schedule = compile("direct", "reduce_scatter", 3)
    with pytest.raises(VerificationError, match="rank 0 has no output of chunk 1"):
        verify(with_step(schedule, 0, len(schedule.ranks[0].steps) - 1, chunk=1))


def test_the_report_counts() -> None:
    schedule = compile("ring", "allreduce", 4, placement=Placement.WINDOW)
    report = verify(schedule)
    assert (report.order, report.steps, report.longest, report.cells) == ("chunk", 24, 6, 0)
    assert report.title == "ring allreduce, 4 ranks, WINDOW"
    assert report.waits == sum(len(step.waits) for mine in schedule.ranks for step in mine.steps)
