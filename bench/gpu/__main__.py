"""``python -m bench.gpu``: the parts in a few processes, each within its time; the result as JSON."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pycollective.comm.cuda.runtime import why_not

from . import nccl
from .parts import PARTS, TINY, Bench, Scale, Skipped, all_runs
from .rows import Result, Row, provenance, table

_ROW, _NOTE, _ABOUT = "ROW ", "NOTE ", "ABOUT "
_NCCL_SECONDS = 40.0
"""For NCCL, which may hang with many ranks on one GPU."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 1 if there is no GPU, a part failed, or an output was wrong."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description="Measure the GPU path.")
    parser.add_argument("--part", action="append", choices=list(PARTS), help="only this (may be repeated)")
    parser.add_argument("--ranks", action="append", type=int, help="only so many virtual ranks (may be repeated)")
    parser.add_argument("--seconds", type=float, default=240.0, help="for everything; what comes late is left out")
    parser.add_argument("--output", type=Path, help="where the JSON goes")
    parser.add_argument("--tiny", action="store_true", help="try the bench itself")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)  # a part's own process
    options = parser.parse_args(arguments)
    if options.here:
        return _measure(options.part, options.ranks[0], TINY if options.tiny else Scale())
    if reason := why_not():
        print(f"nothing to measure: {reason}", file=sys.stderr)
        return 1
    return _drive(options)


def _measure(parts: Sequence[str], ranks: int, scale: Scale) -> int:
    """In a process of their own: rows and notes as lines on standard output."""
    bench = Bench(ranks, scale, lambda row: print(_ROW + json.dumps(asdict(row)), flush=True))
    extra = {"nccl": nccl.text_of(nccl.find()[1])} if "nccl" in parts else {}
    print(_ABOUT + json.dumps(provenance(bench.clock.cuda, 0, bench.ceiling, extra)), flush=True)
    for part in parts:
        try:
            PARTS[part](bench)
        except Skipped as reason:
            print(f"{_NOTE}{part}, {ranks} ranks: not measured: {reason}", flush=True)
    return 0


def _drive(options: Any) -> int:
    result, failed = Result({}), False
    end = time.monotonic() + options.seconds
    for parts, ranks in all_runs():
        wanted = [part for part in parts if not options.part or part in options.part]
        if not wanted or (options.ranks and ranks not in options.ranks):
            continue
        before = len(result.rows)
        most = _NCCL_SECONDS if parts == ("nccl",) else options.seconds
        failed |= not _run(wanted, ranks, options.tiny, min(most, end - time.monotonic()), result)
        print(table(result.rows[before:]), flush=True)
    result.notes += _odd(result.rows)
    for note in result.notes:
        print(f"note: {note}")
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(result.to_json())
        print(f"{len(result.rows)} rows in {options.output}")
    return int(failed or not result.rows or any(row.wrong for row in result.rows))


def _run(parts: Sequence[str], ranks: int, tiny: bool, seconds: float, result: Result) -> bool:
    """Hear a process out; False if it failed. What it measured before that is kept."""
    where = f"{', '.join(parts)}, {ranks} ranks"
    if seconds < 5:
        result.notes.append(f"{where}: not measured: no time left")
        return True
    package = __package__ or "bench.gpu"
    chosen = [word for part in parts for word in ("--part", part)]
    command = [sys.executable, "-m", package, "--here", *chosen, "--ranks", str(ranks), *["--tiny"] * tiny]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
        output, status, error = done.stdout, done.returncode, done.stderr
    except subprocess.TimeoutExpired as late:
        output = late.stdout.decode() if isinstance(late.stdout, bytes) else late.stdout or ""
        status, error = -1, f"not through within {seconds:.0f} s"
    for line in output.splitlines():
        if line.startswith(_ROW):
            fields = json.loads(line.removeprefix(_ROW))
            result.rows.append(Row(**{**fields, "rounds": tuple(fields["rounds"])}))
        elif line.startswith(_NOTE):
            result.notes.append(line.removeprefix(_NOTE))
        elif line.startswith(_ABOUT):
            result.provenance.update(json.loads(line.removeprefix(_ABOUT)))
    if status != 0:
        result.notes.append(f"{where}: failed: {error.strip()[-1000:]}")
        # NCCL may hang with many ranks on one GPU; that is a finding about NCCL.
        return list(parts) == ["nccl"]
    return True


def _odd(rows: Sequence[Row]) -> list[str]:
    return [
        f"{row.part} {row.candidate} {row.collective} {row.dtype} {row.nbytes} bytes, {row.ranks} ranks: "
        f"{row.wrong} elements WRONG"
        for row in rows
        if row.wrong
    ]


if __name__ == "__main__":
    sys.exit(main())
