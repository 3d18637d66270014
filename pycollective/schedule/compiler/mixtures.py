"""What a program of a weighted collective computes: for each result, the weight of every rank's contribution.

It follows the statements, not the passes of the compiler, whose result is compared with it by the verifier.
"""

from __future__ import annotations

from collections.abc import Mapping

from pycollective.schedule.compiler.values import steps_of
from pycollective.schedule.language.program import Program, Statement

Mixture = Mapping[int, float]
"""Weights by source."""


def mixtures(program: Program) -> tuple[Mixture, ...]:
    """The mixture in each place at the end, ranks first: rank * chunks + chunk."""
    chunks = program.chunk_count
    here: list[Mixture] = [{rank: 1.0} for rank in program.ranks for _ in range(chunks)]
    for together in steps_of(program.statements):
        results = [(statement, _right_side(statement, here, chunks)) for statement in together]
        for statement, mixture in results:
            for rank in statement.destinations:
                here[rank * chunks + statement.chunk] = mixture
    return tuple(here)


def _right_side(statement: Statement, here: list[Mixture], chunks: int) -> Mixture:
    read = [here[source * chunks + statement.chunk] for source in statement.sources]
    return read[0] if not statement.weights else mixed(read, statement.weights)


def mixed(mixtures: list[Mixture], weights: tuple[float, ...]) -> Mixture:
    """The sum of mixtures, each times its weight, added in the order given."""
    total: dict[int, float] = {}
    for mixture, weight in zip(mixtures, weights, strict=True):
        for source, part in mixture.items():
            total[source] = total.get(source, 0.0) + weight * part
    return total
