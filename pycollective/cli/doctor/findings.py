"""The findings of `pycollective doctor`: what one is, how they are printed or written, and how programs are tried."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path

from pycollective.cli import outputs

_PROBE_SECONDS = 30


@dataclass(frozen=True)
class Finding:
    """One line of the report: `ok` is False for errors that prevent use, None for missing optional features."""

    group: str
    name: str
    value: str
    ok: bool | None = True
    why: str = ""


def publish(findings: list[Finding], json_file: Path | None) -> int:
    """Print or write findings; the exit code is 1 if one of them prevents use."""
    if json_file is not None:
        groups: dict[str, dict[str, dict[str, object]]] = {}
        for finding in findings:
            fields = {k: v for k, v in asdict(finding).items() if k not in ("group", "name")}
            groups.setdefault(finding.group, {})[finding.name] = fields
        outputs.write_text(json_file, json.dumps(groups, indent=2) + "\n")
    if json_file != outputs.STDOUT:
        _print(findings)
    return int(any(finding.ok is False for finding in findings))


def _print(findings: list[Finding]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    marks = {True: "[green]✓[/]", None: "[yellow]–[/]", False: "[red]✗[/]"}
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    group = ""
    for finding in findings:
        if finding.group != group:
            table.add_row("", f"[cyan]{finding.group}[/]", "", end_section=False)
            group = finding.group
        why = f" [dim]({escape(finding.why)})[/]" if finding.why else ""
        table.add_row(marks[finding.ok], "  " + escape(finding.name), escape(finding.value) + why)
    Console().print(table)


def version_of(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def first_line(command: list[str], line: int = 0) -> str:
    """One line of a command's output; the last if it fails, as a traceback ends with its error."""
    try:
        output = output_of(command, check=True)
    except subprocess.CalledProcessError as error:
        output, line = error.stdout or f"exit code {error.returncode}", -1
    lines = output.strip().splitlines()
    return lines[line].strip() if lines else ""


def output_of(command: list[str], check: bool = False, seconds: float = _PROBE_SECONDS) -> str:
    """A command's output on both streams; the reason if it cannot run."""
    try:
        return subprocess.run(
            command,
            cwd="/",  # not a source tree, which `python -c` would import from
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
            check=check,
        ).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
