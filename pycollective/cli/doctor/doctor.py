"""`pycollective doctor`: what this machine supports, and which path a call would take. Changes nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from json import loads
from typing import Annotated

import typer

from pycollective.cli import outputs
from pycollective.cli.commands import refusing
from pycollective.cli.doctor.findings import Finding, output_of, publish
from pycollective.cli.doctor.gpu import gpu
from pycollective.cli.doctor.machine import machine, memory
from pycollective.cli.doctor.software import core, mpi, packages, tensorflow
from pycollective.cli.options import Json
from pycollective.cli.units import format_size
from pycollective.comm.host.cores import ranges, usable_cores

DEFAULTS = "settings at their defaults"
"""Group of findings that is listed on request."""
_PATH_SIZES = (1 << 10, 1 << 20, 1 << 26)


def examine(frameworks: bool = False) -> list[Finding]:
    """All findings. A check that fails is a finding, too; nothing raises."""
    findings: list[Finding] = []
    checks = [machine, memory, core, packages, mpi, gpu, _job, _paths, _settings]
    for check in [*checks, tensorflow] if frameworks else checks:
        try:
            findings.extend(check())
        except Exception as error:  # the report must continue
            findings.append(Finding(check.__name__.strip("_"), "check failed", repr(error), ok=None))
    return findings


def doctor(
    json: Json = None,
    frameworks: Annotated[
        bool, typer.Option("--frameworks", help="also import the frameworks and try their graphs, which takes seconds")
    ] = False,
    settings: Annotated[
        bool, typer.Option("--settings", help="also list the settings that are at their defaults")
    ] = False,
    network: Annotated[
        bool, typer.Option("--network", help="instead measure the network between hosts; start it with a launcher")
    ] = False,
) -> int:
    """What this machine supports, and which path an allreduce would take; exit code 1 if it is broken."""
    with refusing():
        outputs.check(None, json)
    if not network:
        return publish(examine(frameworks), json, () if settings else (DEFAULTS,))
    from pycollective.cli.doctor.network import report

    return report(json)


def _job() -> Iterator[Finding]:
    from pycollective.comm.bootstrap.detection import launcher

    kind = launcher(os.environ)
    texts = {"alone": "a world of one; start ranks with `pycollective run`, mpirun, torchrun or srun"}
    yield Finding("this process", "started by", kind, why=texts.get(kind, ""))
    usable = usable_cores()
    total = os.cpu_count() or len(usable)
    bound = f"to {'core' if len(usable) == 1 else 'cores'} {ranges(usable)} of {total}"
    yield Finding("this process", "binding", bound if len(usable) < total else "none")


_TRIAL = """
import dataclasses, json, sys, numpy, pycollective
comm = pycollective.init()
total = comm.allreduce(numpy.full(1000, comm.rank + 1.0))
right = bool((total == comm.size * (comm.size + 1) / 2).all())
paths = [dataclasses.asdict(comm.explain("allreduce", int(size))) for size in sys.argv[1:]]
if comm.rank == 0:
    print("TRIAL" + json.dumps([right, paths]))
"""


def _paths() -> Iterator[Finding]:
    """Test as well as query: start one rank per core, connect, and reduce."""
    ranks = max(2, len(usable_cores()))
    group = f"an allreduce on {ranks} ranks here"
    command = [sys.executable, "-m", "pycollective.cli.main", "run", "-np", str(ranks), sys.executable, "-c", _TRIAL]
    output = output_of([*command, *map(str, _PATH_SIZES)])
    line = next((line for line in output.splitlines() if line.startswith("TRIAL")), None)
    if line is None:
        yield Finding(group, "tried", "failed", False, output.strip()[-2000:])
        return
    right, paths = loads(line.removeprefix("TRIAL"))
    yield Finding(group, "tried", "right" if right else "wrong result", right)
    for nbytes, path in zip(_PATH_SIZES, paths, strict=True):
        text = f"{path['topology']}, {path['variant']} variant; comm.empty: {path['window']}; others: {path['plain']}"
        yield Finding(group, format_size(nbytes), text)
    yield Finding(group, "cores", paths[0]["waiting"])


def _settings() -> Iterator[Finding]:
    """The table of settings: each with its value here, and the value's source; those at their defaults come last."""
    from pycollective import settings

    for name, sentence in settings.unknown(os.environ).items():
        yield Finding("settings", name, "unknown", None, sentence)
    rows = [(row, *row.find(os.environ)) for row in settings.TABLE.values()]
    for row, set_by, text in sorted(rows, key=lambda found: not found[1]):
        if not set_by and row.reader in (settings.OWN_LAUNCHER, settings.HOROVODS_LAUNCHERS):
            continue
        default = row.write(row.default)
        source = (f"from {set_by}" if set_by == row.older else "from the environment") if set_by else "default"
        try:
            value, ok = row.write(settings.read(row.name)), True
        except ValueError as error:
            value, ok, source = text, False, str(error)
        value = "(set)" if value and row.kind == "secret" else value
        unit = f" {row.kind}" if value and row.kind.endswith(("seconds", "bytes")) else ""
        usual = f", default {default}" if set_by and default else ""
        yield Finding(
            "settings" if set_by else DEFAULTS, row.name, (value or "-") + unit, ok, f"{row.meaning}; {source}{usual}"
        )
