"""Runs a script on two simulated hosts: the second has a separate host name, clock and file system."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from processes import IMPORTABLE

from launch import _TIMED_OUT, OPEN_MPI_SETTINGS, Launched, _run, _text, find_mpirun

AHEAD = 5000
"""Seconds by which the second host's clock is ahead, if the kernel supports that."""
HEAD = """
import os, signal, sys, time
import numpy as np, pycollective as pc
from pycollective.engine import Engine, Item, Settings
SECONDS = 25
comm = pc.init()
assert comm.cross_size == 2, comm
"""
_WRAPPER = 'exec "$@" >"$0/$OMPI_COMM_WORLD_RANK.out"'


def on_two_hosts(
    folder: Path,
    script: str,
    *arguments: object,
    ranks: int = 4,
    env: Mapping[str, str] | None = None,
    options: tuple[str, ...] = (),
    clock: bool = True,
    timeout: float = 60,
) -> Launched:
    """Run `HEAD` and a script on half of the ranks here and the other half on the second host.

    Args:
        folder: empty; `folder/here/only` is an empty folder that the second host lacks, `folder/tmp` its folder of
            temporary files.
        script: source text. arguments: its sys.argv[1:].
        ranks: even. env: variables to add. options: of mpirun.
        clock: whether the second host has another clock; then mpirun does not see how ranks end there.
        timeout: seconds until everything is killed.
    """
    if not _can("unshare", "-um", "true"):
        pytest.skip("needs unshare -um (root, or user namespaces)")
    ahead = ["-T", "--monotonic", str(AHEAD), "--fork", "--kill-child"]
    ahead = ahead if clock and _can("unshare", *ahead, "true") else []
    mpirun = find_mpirun()
    assert mpirun is not None
    for name in ("out", "here/only", "tmp"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    file = folder / "script.py"
    file.write_text(HEAD + script)
    run = ["sh", "-c", _WRAPPER, str(folder / "out"), sys.executable, str(file), *map(str, arguments)]
    elsewhere = f'hostname elsewhere && mount -t tmpfs none {folder}/here && exec "$@"'
    move = ["env", f"TMPDIR={folder}/tmp", "unshare", "-um", *ahead, "sh", "-c", elsewhere, "elsewhere"]
    half = ["-np", str(ranks // 2)]
    command = [mpirun, "--bind-to", "none", *options, *half, *run, ":", *half, *move, *run]
    environment = {**os.environ, **OPEN_MPI_SETTINGS, **IMPORTABLE, "PYTHONUNBUFFERED": "1", **(env or {})}
    returncode, stderr = _run(command, environment, str(folder), timeout)
    outputs = [_text(folder / "out" / f"{rank}.out") for rank in range(ranks)]
    done = Launched(outputs, returncode, stderr, command)
    assert returncode != _TIMED_OUT, f"not done after {timeout} s\n{done.report()}"
    return done


def _can(*command: str) -> bool:
    return shutil.which(command[0]) is not None and not subprocess.run(command, capture_output=True).returncode
