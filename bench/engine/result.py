"""The result of a run: a row for each contender. The structs define the JSON, as in bench/result.py."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Annotated, Any

import msgspec

from ..result import Provenance, decode, to_json
from ..speed import Line

__all__ = ["SCHEMA", "EngineResult", "EngineRow", "make_row", "read_json", "to_json"]

SCHEMA = "pycollective-engine-bench/1"


class EngineRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A contender's result. Times are medians over the rounds of the slowest rank's time per call."""

    group: Annotated[str, msgspec.Meta(description="contenders of one group and rank count were measured interleaved")]
    contender: str
    library: str
    ranks: int
    tensors: Annotated[int, msgspec.Meta(description="that one call reduces")]
    size: Annotated[int, msgspec.Meta(description="bytes of them all")]
    time_us: float
    wrong: Annotated[int, msgspec.Meta(description="elements on all ranks, over a check before and one after")]
    repetitions: Annotated[int, msgspec.Meta(description="calls of one round")]
    rounds_us: Annotated[list[float], msgspec.Meta(description="an entry for each round: those of a group are pairs")]


class EngineResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="schema", tag=SCHEMA):
    """A complete run of `python -m pycollective.bench.engine`."""

    lines: list[Line]
    provenance: Provenance
    options: dict[str, Any]
    notes: Annotated[list[str], msgspec.Meta(description="contenders left out, and why")]
    rows: list[EngineRow]


def make_row(
    group: str, contender: str, library: str, ranks: int, tensors: int, size: int, wrong: int, repetitions: int,
    seconds: Sequence[float],
) -> EngineRow:  # fmt: skip
    """The row of seconds per call, an entry for each round."""
    rounds = [float(f"{one * 1e6:.5g}") for one in seconds]
    return EngineRow(group, contender, library, ranks, tensors, size, median(rounds), wrong, repetitions, rounds)


def read_json(text: str | bytes) -> EngineResult:
    """The result in JSON text; ValueError naming what is missing, unknown or of the wrong type."""
    return decode(text, EngineResult)
