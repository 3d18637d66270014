"""The result of a run: rows with the columns of nccl-tests, and their provenance.

The structs below define the JSON: its writer, its reader, which rejects any deviation, and its published
schema, docs/schemas/bench.json (see :func:`json_schema`).
"""

from __future__ import annotations

import csv
import io
import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Generic, TypeVar

import msgspec

from pycollective.cli.outputs import json_text
from pycollective.comm.host.cores import cpu_model

from .measurement.measure import Measured
from .measurement.stats import rounded
from .row import Line, Row, about
from .workload.plan import OURS, short_name

__all__ = [
    "SCHEMA",
    "Provenance",
    "Result",
    "Row",
    "TableResult",
    "collect_provenance",
    "json_schema",
    "make_row",
    "read_json",
    "to_csv",
    "to_json",
]

SCHEMA = "pycollective-bench/1"

_Document = TypeVar("_Document", bound=msgspec.Struct)
_Row = TypeVar("_Row", bound=msgspec.Struct)


class Provenance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The origin of the numbers."""

    date: Annotated[str, about("UTC, ISO 8601")]
    commit: Annotated[str, about("empty outside a git checkout; ends in + if files were changed")]
    cpu: str
    cores: Annotated[int, about("available to the process")]
    system: str
    python: str
    numpy: str
    pycollective: str
    libraries: Annotated[dict[str, str], about("version by name, as reported by the peers")]
    yield_when_idle: Annotated[
        dict[str, str],
        about("by rank count, Open MPI's mpi_yield_when_idle: 1, 0 or default; - without Open MPI"),
    ]
    launcher: str
    load: Annotated[float, about("load average over the minute before the run: other work")]


class Result(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="schema", tag=SCHEMA):
    """A complete run of `pycollective bench`."""

    provenance: Provenance
    options: Annotated[dict[str, Any], about("options of the run")]
    notes: Annotated[list[str], about("omissions, and why")]
    rows: list[Row]

    def _repr_html_(self) -> str:
        """The table of the command, for notebooks."""
        from .report.table import row_html

        return row_html(self.rows)


class TableResult(msgspec.Struct, Generic[_Row], frozen=True, forbid_unknown_fields=True):
    """A table of goals, and the rows from which it was made."""

    lines: list[Line]
    provenance: Provenance
    options: dict[str, Any]
    notes: Annotated[list[str], about("what was left out, and why")]
    rows: list[_Row]


def make_row(measured: Measured, group: int, names: Mapping[str, str]) -> Row:
    """The row of a measurement; ``names`` maps requested names to actual ones ("mpi": "openmpi")."""
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
        time_us=rounded(seconds * 1e6, 5),
        algbw=rounded(case.algbw(seconds), 5),
        busbw=rounded(case.busbw(seconds), 5),
        wrong=measured.wrong,
        group=group,
        repetitions=measured.repetitions,
        rounds_us=[rounded(one * 1e6, 5) for one in measured.seconds],
        arrays=candidate.arrays,
        p99_us=None if measured.p99 is None else rounded(measured.p99 * 1e6, 5),
        offsets=list(measured.offsets),
    )


def collect_provenance(
    libraries: Mapping[str, str], yield_when_idle: Mapping[str, str], launcher: str, load: float
) -> Provenance:
    """Information about this machine, without its name or paths."""
    return Provenance(
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        commit=commit(),
        cpu=cpu_model(),
        cores=available_cores(),
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        numpy=version_of("numpy"),
        pycollective=version_of(OURS) or libraries.get(OURS, "").removeprefix("pycollective "),
        libraries=dict(libraries),
        yield_when_idle=dict(yield_when_idle),
        launcher=launcher,
        load=round(load, 2),
    )


def available_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def version_of(package: str) -> str:
    """Empty if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def commit() -> str:
    """PYCOLLECTIVE_COMMIT or the checked-out commit, as in Provenance."""
    if given := os.environ.get("PYCOLLECTIVE_COMMIT"):
        return given
    here = Path(__file__).resolve().parent
    try:
        # only if this file is tracked: an installed copy may be inside another repository
        _git(here, "ls-files", "--error-unmatch", Path(__file__).name)
        changed = _git(here, "status", "--porcelain", "--untracked-files=no")
        return _git(here, "rev-parse", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return ""


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, timeout=10, check=True)
    return done.stdout.strip()


def to_json(result: msgspec.Struct) -> str:
    """A document as JSON text with a line for each row."""
    return json_text(msgspec.to_builtins(result)) + "\n"


def read_json(text: str | bytes) -> Result:
    """The result in JSON text; ValueError naming the field that is missing, unknown or of the wrong type."""
    return decode(text, Result)


def decode(text: str | bytes, kind: type[_Document]) -> _Document:
    """A document of a struct; ValueError naming the field that is missing, unknown or of the wrong type."""
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.MsgspecError as error:
        schema = kind.__struct_config__.tag
        raise ValueError(f"not a result of the schema {schema}: {error}") from None


def json_schema(kind: type[msgspec.Struct] = Result) -> str:
    """The JSON schema (2020-12) of a document, as text."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": str(kind.__struct_config__.tag)}
    return json.dumps({**head, **msgspec.json.schema(kind)}, indent=1) + "\n"


def to_csv(rows: Sequence[Row]) -> str:
    """The rows as CSV with a header line, without the individual rounds."""
    names = [name for name in Row.__struct_fields__ if name != "rounds_us"]
    out = io.StringIO()
    writer = csv.DictWriter(out, names, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(msgspec.structs.asdict(row) for row in rows)
    return out.getvalue()
