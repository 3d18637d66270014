"""Proof that a schedule of a weighted collective computes its mixtures: an execution over weights by source."""

from __future__ import annotations

import math
from typing import NoReturn

from pycollective.errors import VerificationError
from pycollective.schedule.compiler.mixtures import Mixture, mixed
from pycollective.schedule.compiler.schedule import Schedule
from pycollective.schedule.compiler.steps import IN, OUT, RECV, SEND, place_name
from pycollective.schedule.verifier.contributions import Memory, aliasings, memory
from pycollective.schedule.verifier.progress import step_name

_TOLERANCE = 1e-12  # of a weight, relative to the largest: the order of additions is the program's


def check_weights(schedule: Schedule, order: list[tuple[int, int]]) -> None:
    """Execute the steps in the given order (any that respects the waits) and compare every result with its mixture.

    Raises:
        VerificationError: a wrong result, naming rank, chunk and step.
    """
    for aliased in aliasings(schedule):
        _check(schedule, order, aliased)


def _check(schedule: Schedule, order: list[tuple[int, int]], aliased: bool) -> None:
    chunks = schedule.chunks
    holds: dict[Memory, Mixture] = {
        memory(rank, IN, chunk, aliased): {rank: 1.0} for rank in range(schedule.size) for chunk in range(chunks)
    }
    written: dict[Memory, tuple[int, int]] = {}
    messages: dict[tuple[int, int], Mixture] = {}  # by (rank, index) of the send step
    for rank, index in order:
        step = schedule.ranks[rank].steps[index]
        read = []
        if step.kind == RECV:
            sender = step.sources[0]
            where = memory(rank, step.targets[0].place, step.chunk, aliased)
            holds[where] = messages[sender.rank, schedule.index(sender.place)]
            written[where] = rank, index
            continue
        for source in step.sources:
            content = holds.get(memory(source.rank, source.place, step.chunk, aliased))
            if content is None:
                what = f"{place_name(source.rank, source.place)} holds nothing"
                _fail(schedule, rank, step.chunk, (rank, index), what)
            read.append(content)
        if step.kind == SEND:
            messages[rank, index] = read[0]
            continue
        if len(read) != max(1, len(step.weights)):
            _fail(schedule, rank, step.chunk, (rank, index), f"{len(read)} sources have {len(step.weights)} weights")
        result = mixed(read, step.weights) if step.weights else read[0]
        for target in step.targets:
            where = memory(target.rank, target.place, step.chunk, aliased)
            holds[where], written[where] = result, (rank, index)
    for rank in range(schedule.size):
        for chunk in range(chunks):
            where = memory(rank, OUT, chunk, aliased)
            found, expected = holds.get(where), schedule.mixtures[rank * chunks + chunk]
            if found is None or not _equal(found, expected):
                what = "nothing" if found is None else _shown(found)
                text = f"the result is {what} instead of {_shown(expected)}"
                _fail(schedule, rank, chunk, written.get(where), text)


def _equal(found: Mixture, expected: Mixture) -> bool:
    most = max((abs(weight) for weight in expected.values()), default=0.0)
    return found.keys() == expected.keys() and all(
        math.isclose(found[source], expected[source], rel_tol=_TOLERANCE, abs_tol=_TOLERANCE * most)
        for source in expected
    )


def _shown(mixture: Mixture) -> str:
    return " + ".join(f"{weight:g} x[{source}]" for source, weight in sorted(mixture.items()))


def _fail(schedule: Schedule, rank: int, chunk: int, step: tuple[int, int] | None, what: str) -> NoReturn:
    title = f"{schedule.title}: rank {rank}, chunk {chunk}"
    if step is None:
        raise VerificationError(f"{title}: {what}")
    raise VerificationError(f"{title}: {step_name(schedule, *step)}: {what}", [schedule.line(*step)])
