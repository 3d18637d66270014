"""Help and tables are whole at 80 columns."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from launch import CLI, run_command

COMMANDS = ["run", "doctor", "topologies", "verify", "draw", "explain", "simulate", "bench", "demo"]
TABLES = [
    "verify hierarchical(inner='tree',outer='ring') --ranks 4 --collective allreduce",
    "simulate --ranks 4 --sizes 1K,1G",
    "simulate hierarchical(inner='tree',outer='ring') hierarchical(inner='wheel',outer='tree') ring --ranks 4",
    "topologies",
    "doctor",
]


def lines(words: list[str], folder: Path) -> list[str]:
    """What a command writes on a screen of 80 columns."""
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "TERM")}
    return run_command(*words, cwd=folder, env=environment | {"COLUMNS": "80"}).stdout.splitlines()


def test_nothing_is_cut_at_80_columns(tmp_path: Path) -> None:
    helps = [[*CLI, name, "--help"] for name in COMMANDS]
    helps.append([sys.executable, "-m", "pycollective.horovod", "--help"])
    tables = [[*CLI, *line.split()] for line in TABLES]
    with ThreadPoolExecutor(2) as pool:
        written = [*pool.map(lambda words: lines(words, tmp_path), helps + tables)]
    for words, shown in zip(helps + tables, written, strict=True):
        cut = [line for line in shown if len(line) > 80 or "…" in line]
        assert shown and not cut, f"{words[3:]}: {cut}"
