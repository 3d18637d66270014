"""The findings of `pycollective doctor`: what one is, how they are printed or written, and how programs are tried."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import textwrap
from collections import Counter
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path

from pycollective.cli import outputs

_PROBE_SECONDS = 30
_INDENT = 4  # of a word that is too long for the column


@dataclass(frozen=True)
class Finding:
    """One line of the report: `ok` is False for errors that prevent use, None for missing optional features."""

    group: str
    name: str
    value: str
    ok: bool | None = True
    why: str = ""


def publish(findings: list[Finding], json_file: Path | None, folded: Collection[str] = ()) -> int:
    """Print or write findings; the exit code is 1 if one of them prevents use.

    Args:
        folded: groups of which only the number of findings is printed.
    """
    broken = [finding.name for finding in findings if finding.ok is False]
    if json_file is not None:
        groups: dict[str, dict[str, dict[str, object]]] = {}
        for finding in findings:
            fields = {k: v for k, v in asdict(finding).items() if k not in ("group", "name")}
            groups.setdefault(finding.group, {})[finding.name] = fields
        outputs.write_text(json_file, json.dumps(groups, indent=2) + "\n")
    if json_file != outputs.STDOUT:
        _print(findings, folded)
        print(
            f"broken: {', '.join(broken)}" if broken else "pycollective works here; – marks what is optional and absent"
        )
    return int(bool(broken))


def _print(findings: list[Finding], folded: Collection[str]) -> None:
    """A line for each, with its name; texts continue below. A path too long for them has a line of its own."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    groups = Counter(finding.group for finding in findings)
    findings = [finding for finding in findings if finding.group not in folded]
    marks = {True: ("✓", "green"), None: ("–", "yellow"), False: ("✗", "red")}
    longest = max((len(finding.name) for finding in findings), default=0)
    width = max(20, console.width - longest - 6)
    wrapper = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False)
    group = ""
    for finding in findings:
        if finding.group != group:
            console.print(Text(f"  {finding.group}", "cyan"))
            group = finding.group
        shown = finding.value + (f" ({finding.why})" if finding.why else "")
        text = Text("\n".join(part for line in shown.splitlines() for part in wrapper.wrap(line)))
        text.stylize("dim", len(finding.value))
        row = Text.assemble(marks[finding.ok], "   ", (finding.name.ljust(longest), "bold"), "  ")
        start = len(row)
        for number, part in enumerate(text.split("\n")):
            fits = len(part) <= width
            if number or not fits:
                row.rstrip()
                console.print(row, soft_wrap=True)
                row = Text(" " * (start if fits else _INDENT))
            row += part
        console.print(row, soft_wrap=True)
    for group in folded:
        console.print(Text(f"  {groups[group]} {group}, listed by --{group.partition(' ')[0]}", "cyan"), soft_wrap=True)


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
