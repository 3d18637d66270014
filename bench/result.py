"""What a run leaves behind: rows with the columns of nccl-tests, and where, when and with what they were
measured.

The JSON is ``{"schema": SCHEMA, "provenance": {...}, "options": {...}, "notes": [...], "rows": [...]}``;
the dataclasses below are its definition, and :func:`read_json` refuses whatever departs from them.
"""

from __future__ import annotations

import csv
import io
import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

from .measure import Measured
from .plan import OURS, short_name

__all__ = [
    "SCHEMA",
    "Provenance",
    "Result",
    "Row",
    "collect_provenance",
    "make_row",
    "read_json",
    "to_csv",
    "to_json",
]

SCHEMA = "pycollective-bench/1"
_TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,), "float": (int, float), "str": (str,), "bool": (bool,),
    "list[float]": (list,), "list[str]": (list,), "dict[str, str]": (dict,), "dict[str, Any]": (dict,),
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One candidate's result.  Times are medians over the rounds of the slowest rank's time per call."""

    collective: str
    library: str
    topology: str  # "" where the library chooses by itself
    path: str  # "windows" or "plain"
    ranks: int
    size: int  # bytes of the larger buffer
    count: int  # elements
    type: str
    op: str  # "none" where nothing is reduced
    root: int  # -1 where there is none
    in_place: bool
    time_us: float
    algbw: float  # GB/s, 1e9 bytes
    busbw: float  # GB/s
    wrong: int  # elements on all ranks, over a check before and one after the timing
    group: int  # rows of one group (and rank count) were measured interleaved ...
    repetitions: int  # calls of one round
    rounds_us: list[float]  # ... so that these are pairs: one entry for each round


@dataclass(frozen=True)
class Provenance:
    """Where the numbers come from."""

    date: str  # UTC, ISO 8601
    commit: str  # "" outside a git checkout; ends in "+" where files were changed
    cpu: str
    cores: int  # those this process may use
    system: str
    python: str
    numpy: str
    pycollective: str
    libraries: dict[str, str] = field(default_factory=dict)  # name -> version, as the peers report themselves
    # rank count -> Open MPI's mpi_yield_when_idle: "1", "0", or "default"; "-" without Open MPI
    yield_when_idle: dict[str, str] = field(default_factory=dict)
    launcher: str = ""
    load: float = 0.0  # load average over the minute before the run: work that was not ours


@dataclass(frozen=True)
class Result:
    """A whole run."""

    provenance: Provenance
    options: dict[str, Any]
    notes: list[str]  # what was left out, and why
    rows: list[Row]

    def _repr_html_(self) -> str:
        """The table of the command, for notebooks."""
        from .table import row_html

        return row_html(self.rows)


def make_row(measured: Measured, group: int, names: Mapping[str, str]) -> Row:
    """The row of a measurement; ``names`` maps what was asked for to what it is ("mpi": "openmpi")."""
    candidate, case = measured.candidate, measured.candidate.case
    seconds = median(measured.seconds)
    return Row(
        collective=case.collective,
        library=names.get(candidate.library, candidate.library),
        topology=short_name(candidate.topology),
        path=candidate.path,
        ranks=case.ranks,
        size=case.nbytes,
        count=case.count,
        type=case.dtype,
        op=case.op,
        root=case.root,
        in_place=candidate.in_place,
        time_us=_digits(seconds * 1e6),
        algbw=_digits(case.algbw(seconds)),
        busbw=_digits(case.busbw(seconds)),
        wrong=measured.wrong,
        group=group,
        repetitions=measured.repetitions,
        rounds_us=[_digits(one * 1e6) for one in measured.seconds],
    )


def _digits(value: float) -> float:
    return float(f"{value:.5g}")


def collect_provenance(
    libraries: Mapping[str, str], yield_when_idle: Mapping[str, str], launcher: str, load: float
) -> Provenance:
    """What there is to know about this machine, without its name or paths."""
    return Provenance(
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        commit=_commit(),
        cpu=cpu_model(),
        cores=available_cores(),
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        numpy=_version("numpy"),
        pycollective=_version(OURS) or libraries.get(OURS, "").removeprefix("pycollective "),
        libraries=dict(libraries),
        yield_when_idle=dict(yield_when_idle),
        launcher=launcher,
        load=round(load, 2),
    )


def available_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_model() -> str:
    """The processor's name as the kernel gives it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _commit() -> str:
    here = Path(__file__).resolve().parent
    try:
        # only where this very file is tracked: an installed copy may lie inside somebody else's repository
        _git(here, "ls-files", "--error-unmatch", Path(__file__).name)
        changed = _git(here, "status", "--porcelain", "--untracked-files=no")
        return _git(here, "rev-parse", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return ""


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, timeout=10, check=True)
    return done.stdout.strip()


def to_json(result: Result) -> str:
    """The result as JSON text; one line for each row, so that files of two runs can be compared."""
    head = {
        "schema": SCHEMA,
        "provenance": asdict(result.provenance),
        "options": result.options,
        "notes": result.notes,
    }
    rows = ",\n  ".join(json.dumps(asdict(row)) for row in result.rows)
    return json.dumps(head, indent=1)[:-2] + f',\n "rows": [\n  {rows}\n ]\n}}\n'


def read_json(text: str) -> Result:
    """The result in JSON text; ValueError naming the field that is missing, unknown or of the wrong type."""
    data = json.loads(text)
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise ValueError(f"not a result of the schema {SCHEMA}")
    data.pop("schema")
    _fit(Result, data)
    provenance = Provenance(**_fit(Provenance, data["provenance"]))
    return Result(provenance, data["options"], data["notes"], [Row(**_fit(Row, row)) for row in data["rows"]])


def _fit(kind: type, data: dict[str, Any]) -> dict[str, Any]:
    wanted = {f.name: str(f.type) for f in fields(kind)}
    if odd := set(wanted) ^ set(data):
        raise ValueError(f"{kind.__name__}: missing or unknown fields {', '.join(sorted(odd))}")
    for name, declared in wanted.items():
        types = _TYPES.get(declared, (object,))
        if not isinstance(data[name], types) or (isinstance(data[name], bool) and bool not in types):
            raise ValueError(f"{kind.__name__}.{name} must be {declared}, not {data[name]!r}")
    return data


def to_csv(rows: Sequence[Row]) -> str:
    """The rows as CSV with a header line, without the single rounds."""
    names = [f.name for f in fields(Row) if f.name != "rounds_us"]
    out = io.StringIO()
    writer = csv.DictWriter(out, names, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    return out.getvalue()
