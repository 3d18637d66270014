"""What a run leaves behind: a row for each contender, in the JSON of bench/result.py but for the rows' fields.

``{"schema": SCHEMA, "lines": [...], "provenance": {...}, "options": {...}, "notes": [...], "rows": [...]}``
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from statistics import median
from typing import Any

from ..result import Provenance
from ..speed import Line

__all__ = ["SCHEMA", "EngineResult", "EngineRow", "make_row", "read_json", "to_json"]

SCHEMA = "pycollective-engine-bench/1"


@dataclass(frozen=True)
class EngineRow:
    """A contender's result.  Times are medians over the rounds of the slowest rank's time per call."""

    group: str  # contenders of one group and rank count were measured interleaved ...
    contender: str
    library: str
    ranks: int
    tensors: int  # that one call reduces
    size: int  # bytes of them all
    time_us: float
    wrong: int  # elements on all ranks, over a check before and one after the timing
    repetitions: int  # calls of one round
    rounds_us: list[float]  # ... so that these are pairs: one entry for each round


@dataclass(frozen=True)
class EngineResult:
    """A whole run."""

    lines: list[Line]
    provenance: Provenance
    options: dict[str, Any]
    notes: list[str]  # who was left out, and why
    rows: list[EngineRow]


def make_row(
    group: str, contender: str, library: str, ranks: int, tensors: int, size: int, wrong: int, repetitions: int,
    seconds: Sequence[float],
) -> EngineRow:  # fmt: skip
    """The row of seconds per call, an entry for each round."""
    rounds = [float(f"{one * 1e6:.5g}") for one in seconds]
    return EngineRow(group, contender, library, ranks, tensors, size, median(rounds), wrong, repetitions, rounds)


def to_json(result: EngineResult) -> str:
    """JSON text; one line for each row, so that files of two runs can be compared."""
    head: dict[str, Any] = {"schema": SCHEMA, "lines": [asdict(line) for line in result.lines]}
    head |= {"provenance": asdict(result.provenance), "options": result.options, "notes": result.notes}
    rows = ",\n  ".join(json.dumps(asdict(row)) for row in result.rows)
    return json.dumps(head, indent=1)[:-2] + f',\n "rows": [\n  {rows}\n ]\n}}\n'


def read_json(text: str) -> EngineResult:
    """The result in JSON text; ValueError naming what is missing or unknown."""
    data = json.loads(text)
    if not isinstance(data, dict) or data.pop("schema", None) != SCHEMA:
        raise ValueError(f"not a result of the schema {SCHEMA}")
    _fit(EngineResult, data)
    lines = [Line(**_fit(Line, line)) for line in data["lines"]]
    rows = [EngineRow(**_fit(EngineRow, row)) for row in data["rows"]]
    provenance = Provenance(**_fit(Provenance, data["provenance"]))
    return EngineResult(lines, provenance, data["options"], data["notes"], rows)


def _fit(kind: Any, data: dict[str, Any]) -> dict[str, Any]:
    if odd := {f.name for f in fields(kind)} ^ set(data):
        raise ValueError(f"{kind.__name__}: missing or unknown fields {', '.join(sorted(odd))}")
    return data
