"""Ranks of `pycollective run` that write their pids into the folder in which they start."""

from __future__ import annotations

import sys
from pathlib import Path

from speed import until

START = """
import os, signal, sys, time
rank = int(os.environ["PYCOLLECTIVE_RANK"])

def write_pids(*pids):
    with open(f"new{rank}", "w") as file:
        print(*pids, file=file)
    os.rename(f"new{rank}", f"pids{rank}")
"""


def python(code: str) -> list[str]:
    """The command of a rank that runs `code`, with `rank` and `write_pids`."""
    return [sys.executable, "-c", START + code]


def pids(count: int) -> list[int]:
    """What `count` ranks have written."""
    files = [Path(f"pids{rank}") for rank in range(count)]
    until(lambda: all(file.exists() for file in files), 20)
    return [int(word) for file in files for word in file.read_text().split()]
