"""Random calls in separate processes: an unexpected end of one is reported with the call that it was making.

A module that makes calls has a `main` that passes blocks of calls to `make_blocks`; its test starts it through
`run_blocks`. After a signal or a hang, the next block continues in another process.
"""

from __future__ import annotations

import faulthandler
import gc
import mmap
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from processes import IMPORTABLE
from speed import deadline

NOTE = 8192
"""Bytes of the file in which a process records its next call."""
HANGS = deadline(20)
"""Seconds after which a call counts as hung."""

Note = Callable[[str], None]


def make_blocks(block_of: Callable[[int, Note], None], blocks: int, path: str, first: int, memory: int) -> None:
    """In the child: `block_of(number, note)` for each block from `first`; `note` precedes each call."""
    if "libasan" not in os.environ.get("LD_PRELOAD", ""):  # its shadow memory is larger than any limit
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), NOTE) as notes:
        for block in range(first, blocks):

            def note(text: str, block: int = block) -> None:
                faulthandler.dump_traceback_later(HANGS, exit=True)
                data = f"{block} {text}".encode(errors="replace")[: NOTE - 2] + b"\0"
                notes[: len(data)] = data

            note("the start of the block")
            block_of(block, note)
            note("the end of the block")
            gc.collect()
        faulthandler.cancel_dump_traceback_later()


def run_blocks(
    module: str, arguments: Mapping[str, int], folder: Path, environment: Mapping[str, str] | None = None
) -> list[str]:
    """In the test: `python -m module ARGUMENT BLOCKS NOTE FIRST` for each argument (and its blocks), two at a time.

    Returns:
        every line of the output, and every call that ended a process.
    """
    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(_run, module, *row, folder / row[0], environment or {}) for row in arguments.items()]
    return [line for run in runs for line in run.result()]


def _run(module: str, argument: str, blocks: int, folder: Path, environment: Mapping[str, str]) -> list[str]:
    """The calls run in `folder`, since some of them write files."""
    folder.mkdir()
    (folder / "scratch").mkdir()
    note, output = folder / "note", folder / "output"
    found: list[str] = []
    first = 0
    while first < blocks:
        note.write_bytes(b"\0" * NOTE)
        command = [sys.executable, "-m", module, argument, str(blocks), str(note), str(first)]
        with output.open("wb") as errors:
            done = subprocess.run(
                command, env={**os.environ, **IMPORTABLE, **environment}, cwd=folder / "scratch", text=True,
                stdout=subprocess.PIPE, stderr=errors, stdin=subprocess.DEVNULL, errors="replace", check=False,
            )  # fmt: skip
        found += [f"{argument}: {line}" for line in done.stdout.splitlines()]
        if done.returncode == 0:
            break
        number, _, call = note.read_bytes().split(b"\0")[0].decode(errors="replace").partition(" ")
        tail = output.read_text(errors="replace")[-1500:]
        ended = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
        found.append(f"{argument}/{number} {call}: {ended}: {tail}")
        first = max(int(number), first) + 1 if number.isdigit() else blocks
    return found
