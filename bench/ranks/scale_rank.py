"""What each rank of ``bench.scale`` runs.  It imports nothing that an application would not import."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["main"]


def main(folder: str) -> None:
    """One rank: runs the stages and writes its times."""
    import numpy as np

    (Path(folder) / f"{os.getpid()}.started").touch()
    while not (Path(folder) / "go").exists():
        time.sleep(0.02)
    marks: dict[str, tuple[float, float]] = {}
    begin = time.monotonic()
    import pycollective as pc

    comm = pc.init()
    marks["init"] = begin, time.monotonic()
    small, large = np.ones(256, np.float32), np.ones(1 << 18, np.float32)
    calls: dict[str, Callable[[], object]] = {
        "barrier": comm.barrier,
        "ring": lambda: comm.allreduce(small, topology="ring"),
        "halving_doubling": lambda: comm.allreduce(large, topology="halving_doubling"),
        "wheel": lambda: comm.allreduce(large, topology="wheel"),
        "direct": lambda: comm.allreduce(large),
        "split": lambda: comm.split(comm.rank % 2),
        "again": lambda: comm.allreduce(small, topology="ring"),
    }
    for stage, call in calls.items():
        begin = time.monotonic()
        call()
        marks[stage] = begin, time.monotonic()
        comm.barrier()
    Path(folder, f"{comm.rank}.json").write_text(json.dumps(marks))
