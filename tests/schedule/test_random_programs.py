"""Random programs: the compiled schedule matches sequential execution, however the ranks interleave."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, note
from hypothesis import strategies as st
from seeds import examples

from pycollective.errors import VerificationError
from pycollective.schedule import Placement, Program, Schedule, Wait, compile_program
from pycollective.schedule.compiler import messages
from pycollective.schedule.compiler.steps import describe_step
from pycollective.schedule.verifier.interleaving import check_interleavings
from pycollective.schedule.verifier.structure import check_structure

from .interpreter import Interpreter, inputs_for, run_program
from .random_programs import programs
from .test_verifier import with_step

TILES = 3
CALLS = 2


def text(schedule: Schedule) -> str:
    """The schedule for a failing example's report."""
    return "\n".join(
        f"rank {rank} step {index}: {[(w.peer, w.count) for w in step.waits]} {describe_step(step)}"
        for rank, mine in enumerate(schedule.ranks)
        for index, step in enumerate(mine.steps)
    )


def disagreements(program: Program, schedule: Schedule, seed: int, same_array: bool = False) -> list[object]:
    """The results, over all calls, in which the interpreted schedule differs from the program."""
    calls = [inputs_for(program, TILES, call) for call in range(CALLS)]
    outputs = Interpreter(schedule, TILES, seed, same_array=same_array).run(calls)
    wrong: list[object] = []
    for inputs, output in zip(calls, outputs, strict=True):
        expected = run_program(program, inputs, TILES)
        wrong += [(place, value, output.get(place)) for place, value in expected.items() if output[place] != value]
    return wrong


EITHER = st.one_of(programs(), programs(across=True))
PLACEMENTS = st.sampled_from(Placement)


@examples(480)
@given(program=EITHER, seed=st.integers(0, 2**32), placement=PLACEMENTS, small=st.booleans(), same_array=st.booleans())
def test_any_interleaving_matches_the_program(
    program: Program, seed: int, placement: Placement, small: bool, same_array: bool
) -> None:
    """And the verifier finds no fault."""
    schedule = compile_program(program, placement, small=small)
    note(text(schedule))
    check_structure(schedule)
    check_interleavings(schedule)
    assert disagreements(program, schedule, seed, same_array and placement is Placement.STAGED) == []
    assert not small or schedule.depth == 1


@examples(120)
@given(program=programs(), placement=PLACEMENTS, data=st.data())
def test_a_verifier_that_sees_no_race_is_right(program: Program, placement: Placement, data: st.DataObject) -> None:
    """Drop some waits: if the verifier still finds no fault, no interleaving may give a wrong result."""
    schedule = compile_program(program, placement)
    waits = [(r, i, w) for r, mine in enumerate(schedule.ranks) for i, s in enumerate(mine.steps) for w in s.waits]
    dropped = data.draw(st.lists(st.sampled_from(waits), max_size=2)) if waits else []
    weakened = schedule
    for rank, index, wait in dropped:
        weakened = without(weakened, rank, index, wait)
    note(text(weakened))
    try:
        check_interleavings(weakened)
    except VerificationError:
        assert dropped
        return
    assert not dropped, "every wait of a compiled schedule is needed"
    for seed in range(3):
        assert disagreements(program, weakened, seed) == []


@examples(300)
@given(program=programs(across=True), placement=PLACEMENTS, data=st.data())
def test_a_verifier_that_sees_no_race_across_hosts_is_right(
    program: Program, placement: Placement, data: st.DataObject
) -> None:
    """Drop a wait or a precaution of the compiler, or receive a message later."""
    with pytest.MonkeyPatch.context() as patch:
        if data.draw(st.booleans()):
            patch.setattr(messages, "_find_hazards", lambda *_: None)
        schedule = compile_program(program, placement)
    broken = data.draw(st.sampled_from([schedule, *variations(schedule)]))
    note(text(broken))
    try:
        check_structure(broken)
        check_interleavings(broken)
    except VerificationError:
        return
    for seed in range(4):
        for same_array in (False, True) if placement is Placement.STAGED else (False,):
            assert disagreements(program, broken, seed, same_array) == []


def variations(schedule: Schedule) -> Iterator[Schedule]:
    """The schedule with one step changed."""
    for rank, mine in enumerate(schedule.ranks):
        for index, step in enumerate(mine.steps):
            for wait in step.waits:
                yield without(schedule, rank, index, wait)
            if step.kind == "recv":
                yield with_step(schedule, rank, index, early=not step.early)


def without(schedule: Schedule, rank: int, index: int, wait: Wait) -> Schedule:
    """The schedule in which a step lacks a wait."""
    waits = tuple(other for other in schedule.ranks[rank].steps[index].waits if other != wait)
    return with_step(schedule, rank, index, waits=waits)


def test_the_interpreter_sees_a_missing_wait() -> None:
    """The reference is only useful if it fails without waits."""
    p = Program("broadcast", 3, 0)
    for c in p.chunks(1):
        p[1, c] = p[0, c]
        p[2, c] = p[1, c]
    schedule = compile_program(p, Placement.STAGED)
    assert schedule.ranks[2].steps[0].waits
    weakened = with_step(schedule, 2, 0, waits=())
    assert any(disagreements(p, weakened, seed) for seed in range(20))
    assert not any(disagreements(p, schedule, seed) for seed in range(20))
