"""A rank of a fault trial: `survivor.py FOLDER KIND SEED`. It reports to a file of its own, as hosts share files."""

from __future__ import annotations

import json
import os
import random
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from faults import work

import pycollective

SHRINK = 6.0
"""Seconds that survivors wait for each other: some may notice a lost host later than others."""


class FileLink:
    """Appends what is sent, as lines of JSON; nothing is received, so survivors continue at once."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)

    def send(self, obj: Any) -> None:
        self._file.write(json.dumps(obj) + "\n")

    def recv(self) -> str:
        return "survive"


def _torch_step(comm: pycollective.Communicator, seed: int) -> work.Step:
    """Calls of torch.distributed; the survivors shrink the communicator of all ranks."""
    from datetime import timedelta

    import torch.distributed as dist

    import pycollective.torch.distributed  # noqa: F401  registers the backend

    random.seed(seed)
    dist.init_process_group("pycollective", timeout=timedelta(seconds=float(os.environ["PYCOLLECTIVE_TIMEOUT"])))
    return work.c10d_step(comm.rank, comm.size, random.Random(seed))


def main(folder: str, kind: str, seed: str) -> None:
    """Work until something raises, then shrink the communicator and work again."""
    comm = pycollective.init()
    link = FileLink(Path(folder, f"{comm.rank}.report"))
    link.send({"pid": os.getpid(), "host": socket.gethostname()})
    made: dict[str, float] = {}

    def survive() -> None:
        if kind == "torch":
            sys.modules["torch.distributed"].destroy_process_group()
        fresh = comm
        while True:
            fresh = fresh.shrink(SHRINK)
            made.update(size=fresh.size, at=time.monotonic())
            try:
                return work.work_on(fresh)
            except pycollective.PeerLostError:  # another one was lost
                continue

    try:
        if kind == "torch":
            step = _torch_step(comm, int(seed))
        else:
            step = work.step_of(comm, kind, int(seed))
        work.endure(link, step, survive)
        link.send(made)
    except pycollective.Error as error:
        link.send({"refused": f"{type(error).__name__}: {error}", "at": time.monotonic()})
    except Exception:
        link.send({"wrong": traceback.format_exc()})
    os._exit(0)  # whatever launched it need not agree that it may end


if __name__ == "__main__":
    main(*sys.argv[1:])
