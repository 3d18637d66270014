"""Reads a Chrome trace: a schema of the format, and a parser with the rules of viewers."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema

_NUMBER = {"type": "number", "minimum": 0}
_INTEGER = {"type": "integer"}
_COMMON = {"name": {"type": "string"}, "pid": _INTEGER, "tid": _INTEGER, "args": {"type": "object"}}


def _event(phase: str, required: list[str], **more: Any) -> dict[str, Any]:
    return {
        "properties": {"ph": {"const": phase}, **_COMMON, **more},
        "required": ["ph", "name", "pid", "tid", *required],
        "additionalProperties": False,
    }


_TEXT = {"type": "string"}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["traceEvents"],
    "properties": {
        "displayTimeUnit": {"enum": ["ms", "ns"]},
        "traceEvents": {
            "type": "array",
            "items": {
                "type": "object",
                "oneOf": [
                    _event("X", ["ts", "dur"], ts=_NUMBER, dur=_NUMBER, cat=_TEXT),
                    _event("M", ["args"]),
                    _event("i", ["ts"], ts=_NUMBER, s={"enum": ["g", "p", "t"]}),
                    _event("s", ["ts", "id", "cat"], ts=_NUMBER, id={"type": ["string", "integer"]}, cat=_TEXT),
                    _event(
                        "f", ["ts", "id", "cat", "bp"],
                        ts=_NUMBER, id={"type": ["string", "integer"]}, cat=_TEXT, bp={"const": "e"},
                    ),
                ],
            },
        },
    },
}  # fmt: skip
"""From "Trace Event Format", Google: the parts that an engine writes."""


@dataclass(frozen=True)
class Slice:
    """An interval; microseconds."""

    name: str
    pid: int
    tid: int
    begin: float
    end: float
    args: dict[str, Any] = field(compare=False, hash=False)


@dataclass
class Trace:
    """A trace as a viewer sees it."""

    processes: dict[int, str]
    threads: dict[tuple[int, int], str]
    slices: list[Slice]
    instants: list[dict[str, Any]]
    arrows: list[tuple[dict[str, Any], dict[str, Any]]]

    def row(self, pid: int, name: str) -> list[Slice]:
        """The slices of the row with that name, by their begin."""
        tids = {tid for (process, tid), text in self.threads.items() if (process, text) == (pid, name)}
        assert len(tids) <= 1, f"several rows {name!r}"
        return sorted((s for s in self.slices if s.pid == pid and s.tid in tids), key=lambda s: s.begin)


def read(path: Path) -> Trace:
    """Read, validate, and check what viewers rely on; raises AssertionError or ValidationError."""
    data = json.loads(path.read_text())
    jsonschema.validate(data, SCHEMA)
    events = data["traceEvents"]
    named = {e["pid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "process_name"}
    rows = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    slices = [
        Slice(e["name"], e["pid"], e["tid"], e["ts"], e["ts"] + e["dur"], e.get("args", {}))
        for e in events
        if e["ph"] == "X"
    ]
    for one in slices:
        assert one.pid in named, f"{one} is of no process that has a name"
        assert (one.pid, one.tid) in rows, f"{one} is of no row that has a name"
    _check_nesting(slices)
    instants = [e for e in events if e["ph"] == "i"]
    return Trace(named, rows, slices, instants, _arrows(events, slices))


def _check_nesting(slices: list[Slice], slack: float = 0.002) -> None:
    """Slices of a row must be disjoint or nested: viewers drop overlaps. Times are rounded to nanoseconds."""
    rows: dict[tuple[int, int], list[Slice]] = defaultdict(list)
    for one in slices:
        rows[one.pid, one.tid].append(one)
    for row in rows.values():
        open_ones: list[Slice] = []
        for one in sorted(row, key=lambda s: (s.begin, -s.end)):
            while open_ones and open_ones[-1].end <= one.begin + slack:
                open_ones.pop()
            assert not open_ones or one.end <= open_ones[-1].end + slack, f"{one} overlaps {open_ones[-1]}"
            open_ones.append(one)


def _arrows(events: list[dict[str, Any]], slices: list[Slice]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Pairs of ends; each end must be on a slice, or a viewer shows no arrow."""
    begins: dict[Any, dict[str, Any]] = {}
    for e in events:
        if e["ph"] == "s":
            assert e["id"] not in begins, f"two arrows begin as {e['id']}"
            begins[e["id"]] = e
    pairs = [(begins.get(e["id"]), e) for e in events if e["ph"] == "f"]
    for begin, end in pairs:
        assert begin is not None, f"{end} has no begin"
        for e in (begin, end):
            assert any(s.pid == e["pid"] and s.tid == e["tid"] and s.begin <= e["ts"] <= s.end for s in slices), e
    assert {begin["id"] for begin, _ in pairs if begin} == set(begins), "arrows without an end"
    return [(begin, end) for begin, end in pairs if begin]
