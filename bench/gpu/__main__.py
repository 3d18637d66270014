"""``python -m bench.gpu``: the parts in a few processes, each within its time; the result as JSON."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from pycollective.comm.cuda.runtime import why_not

from ..report.lines import markdown_table
from . import goals
from .candidates import nccl
from .parts import PARTS, TILES, TINY, Bench, Run, Scale, Skipped, all_runs
from .rows import SCHEMA, Check, Result, Row, provenance, table

_ROW, _CHECK, _NOTE, _ABOUT, _PART = "ROW ", "CHECK ", "NOTE ", "ABOUT ", "PART "
_BROKEN = 3
"""Exit status of a part's process whose GPU work hangs or has recorded a fault: the other parts need a new one."""
_NCCL_SECONDS = 40.0
"""Time limit for NCCL, which may hang with many ranks on one GPU."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 1 if there is no GPU, a part failed, or an output was wrong."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description="Measure the GPU path.")
    parser.add_argument("--part", action="append", choices=list(PARTS), help="only this (may be repeated)")
    parser.add_argument("--ranks", action="append", type=int, help="only this many virtual ranks (may be repeated)")
    parser.add_argument("--seconds", type=float, default=240.0, help="for everything; later parts are omitted")
    parser.add_argument("--output", type=Path, help="where the JSON goes")
    parser.add_argument(
        "--read", nargs="+", type=Path, metavar="FILE", help="measure nothing: the goals by these files"
    )
    parser.add_argument("--tiny", action="store_true", help="try the bench itself")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)  # a part's own process
    options = parser.parse_args(arguments)
    if options.read:
        _show(_read(options.read))
        return 0
    if options.here:
        return _measure(options.part, options.ranks[0], TINY if options.tiny else Scale())
    if reason := why_not():
        print(f"nothing to measure: {reason}", file=sys.stderr)
        return 1
    return _drive(options)


def _measure(parts: Sequence[str], ranks: int, scale: Scale) -> int:
    """Run parts in their own process: rows and notes as lines on standard output."""

    def emit(found: Row | Check) -> None:
        print((_ROW if isinstance(found, Row) else _CHECK) + json.dumps(asdict(found)), flush=True)

    bench = Bench(ranks, scale, emit)
    extra = {}
    if "nccl" in parts:
        nccl.prepare(ranks, bench.world.channels * ranks)
        extra = nccl.about(ranks)
    print(_ABOUT + json.dumps(provenance(bench.clock.cuda, 0, bench.ceiling, extra)), flush=True)
    failed = False
    for part in parts:
        print(_PART + part, flush=True)
        try:
            PARTS[part](bench)
        except Skipped as reason:
            print(f"{_NOTE}{part}, {ranks} ranks: not measured: {reason}", flush=True)
        except Exception as error:  # the other parts may succeed
            traceback.print_exc()
            fault = bench.fault()
            where = f"{part}, {ranks} ranks, {bench.clock.now}"
            print(f"{_NOTE}{where}: failed: {type(error).__name__}: {error}; {fault}", flush=True)
            failed = True
            if fault or isinstance(error, TimeoutError):
                os._exit(_BROKEN)  # destructors would wait for the GPU
    return int(failed)


def _drive(options: Any) -> int:
    result, failed = Result({}), False
    end = time.monotonic() + options.seconds
    for run in all_runs(TILES[:1] if options.tiny else TILES):
        # Tuning has another purpose than the rest: it runs only on request.
        wanted = [part for part in run.parts if part in (options.part or set(PARTS) - {"tuning"})]
        if not wanted or (options.ranks and run.ranks not in options.ranks):
            continue
        before = len(result.rows)
        most = min(_NCCL_SECONDS if wanted == ["nccl"] else options.seconds, end - time.monotonic())
        chosen: Run | None = Run(tuple(wanted), run.ranks, run.environment)
        while chosen is not None:
            good, chosen = _follow(chosen, options.tiny, most, result, lambda: _save(result, options.output))
            failed |= not good
            most = min(most, end - time.monotonic())
        print(table(result.rows[before:]), flush=True)
    result.notes += _odd(result.rows)
    _show(result)
    _save(result, options.output)
    if options.output:
        print(f"{len(result.rows)} rows in {options.output}")
    wrong = any(row.wrong for row in result.rows) or not all(check.passed for check in result.checks)
    return int(failed or wrong or not (result.rows or result.checks))


def _save(result: Result, output: Path | None) -> None:
    """Write the current results to the file; if that fails it keeps its previous content."""
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        fresh = output.with_suffix(".new")
        fresh.write_text(result.to_json())
        fresh.replace(output)


def _read(files: Sequence[Path]) -> Result:
    """The results of several runs as one, of those files that this bench has written."""
    whole = Result({})
    for file in files:
        read = json.loads(file.read_text())
        if read.get("schema") != SCHEMA:
            continue
        whole.rows += map(_row, read["rows"])
        whole.checks += [Check(**check) for check in read["checks"]]
        whole.notes += [f"{file.stem}: {note}" for note in read["notes"]]
    return whole


def _row(of: Mapping[str, Any]) -> Row:
    """Read a row from JSON, which also has what is derived from the fields."""
    kept = {field.name: of[field.name] for field in fields(Row)}
    return Row(**{**kept, "rounds": tuple(kept["rounds"])})


def _show(result: Result) -> None:
    """Checks, goals and notes, for display and for docs/performance.md."""
    for check in result.checks:
        print(f"{check.name}: {'ok' if check.passed else 'WRONG'}: {check.text}")
    print(markdown_table(goals.lines(result.rows, result.checks)))
    for note in result.notes:
        print(f"note: {note}")


def _follow(run: Run, tiny: bool, seconds: float, result: Result, save: Callable[[], None]) -> tuple[bool, Run | None]:
    """Read a process's output to the end. Each result is saved at once.

    Returns:
        Whether it succeeded, and the parts that remain if it broke down before them.
    """
    where = f"{', '.join(run.parts)}, {run.ranks} ranks"
    if seconds < 5:
        result.notes.append(f"{where}: not measured: no time left")
        return True, None
    package = __package__ or "bench.gpu"
    chosen = [word for part in run.parts for word in ("--part", part)]
    command = [sys.executable, "-m", package, "--here", *chosen, "--ranks", str(run.ranks), *["--tiny"] * tiny]
    environment = {**os.environ, **run.environment}
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)
        timer = threading.Timer(seconds, process.kill)
        timer.start()
        assert process.stdout is not None
        begun = ""
        for line in process.stdout:
            if line.startswith(_PART):
                begun = line.removeprefix(_PART).strip()
            _sort(line, result)
            save()
        status = process.wait()
        late = not timer.is_alive()
        timer.cancel()
        errors.seek(0)
        error = f"not completed within {seconds:.0f} s" if late else errors.read().strip()[-1000:]
    if status not in (0, _BROKEN):  # of which there is a note
        result.notes.append(f"{where}: failed: {error}")
    save()
    rest = run.parts[run.parts.index(begun) + 1 :] if begun and status not in (0, 1) and not late else ()
    # NCCL may hang with many ranks on one GPU; that is a finding about NCCL.
    good = status == 0 or run.parts == ("nccl",)
    return good, Run(rest, run.ranks, run.environment) if rest else None


def _sort(line: str, result: Result) -> None:
    """Add a line of a process's output to the result."""
    if line.startswith(_ROW):
        result.rows.append(_row(json.loads(line.removeprefix(_ROW))))
    elif line.startswith(_CHECK):
        result.checks.append(Check(**json.loads(line.removeprefix(_CHECK))))
    elif line.startswith(_NOTE):
        result.notes.append(line.removeprefix(_NOTE).strip())
    elif line.startswith(_ABOUT):
        result.provenance.update(json.loads(line.removeprefix(_ABOUT)))


def _odd(rows: Sequence[Row]) -> list[str]:
    return [
        f"{row.part} {row.candidate} {row.collective} {row.dtype} {row.nbytes} bytes, {row.ranks} ranks: "
        f"{row.wrong} elements WRONG"
        for row in rows
        if row.wrong
    ]


if __name__ == "__main__":
    sys.exit(main())
