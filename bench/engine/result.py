"""The result of a run: a row for each contender. The structs define the JSON, as in bench/result.py."""

from __future__ import annotations

from typing import Annotated

import msgspec

from ..result import TableResult
from ..row import about

__all__ = ["SCHEMA", "EngineResult", "EngineRow"]

SCHEMA = "pycollective-engine-bench/1"


class EngineRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A contender's result. Times are medians over the rounds of the slowest rank's time per call."""

    group: Annotated[str, about("contenders of one group and rank count were measured interleaved")]
    contender: str
    library: str
    ranks: int
    tensors: Annotated[int, about("that one call reduces")]
    size: Annotated[int, about("bytes of them all")]
    time_us: float
    wrong: Annotated[int, about("elements on all ranks, over a check before and one after")]
    repetitions: Annotated[int, about("calls of one round")]
    rounds_us: Annotated[list[float], about("an entry for each round: those of a group are pairs")]


class EngineResult(TableResult[EngineRow], frozen=True, forbid_unknown_fields=True, tag_field="schema", tag=SCHEMA):
    """A complete run of `python -m pycollective.bench.engine`."""
