"""Bitwise reproducibility of `direct`: on virtual ranks, on processes that share GPU memory, and on CPU ranks."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import pycollective

from ..ranks.launch import Launcher
from .candidates.buffers import Buffers, Host, numbers
from .candidates.calls import Ours
from .clock import Clock
from .rows import Check

COUNTS = (5, 3000, 1_000_003)
"""Elements of float32: packets twice, and tiles over many blocks with an end that is not a full vector."""
REPEATS = 20
_SECONDS = 60.0
_SHIFT = 101  # offset in elements between two ranks' views of the same random numbers


def check(clock: Clock, ranks: int, ours: Callable[[Buffers, str], Sequence[Ours]]) -> Check:
    """Allreduces on all paths.

    Args:
        ours: makes our candidates for a collective on buffers.

    Raises:
        RuntimeError: a process failed or is late.
    """
    found = {
        f"{REPEATS} repeats on virtual ranks": [_virtual(clock, ranks, ours, count) for count in COUNTS],
        "processes": _processes(ranks),
        "CPU ranks": [_on_cpu(ranks, count) for count in COUNTS],
    }
    same = all(len(set().union(*digests)) == 1 for digests in zip(*found.values(), strict=True))
    odd = "" if same else "".join(f"; {path}: {[sorted(d) for d in digests]}" for path, digests in found.items())
    return Check(f"bits, {ranks} ranks", same, ", ".join(found) + odd)


def _inputs(rank: int, count: int) -> Host:
    return np.ascontiguousarray(numbers("float32", count + 64 * _SHIFT)[rank * _SHIFT :][:count])


def _digest(result: Host) -> str:
    return hashlib.sha256(result.tobytes()).hexdigest()[:16]


def _virtual(clock: Clock, ranks: int, ours: Callable[[Buffers, str], Sequence[Ours]], count: int) -> set[str]:
    buffers = Buffers(clock, ranks, "float32", 4 * count, l2_bytes=0)
    for rank, x in enumerate(buffers.inputs[0]):
        x.copy_from_host(_inputs(rank, count).view(np.uint8), clock.stream)
    (mine,) = ours(buffers, "allreduce")
    digests = set()
    for _ in range(REPEATS):
        buffers.poison()
        mine.call(0)
        clock.synchronize()
        for out in buffers.outputs[0]:
            got = np.empty(count, np.float32)
            out.copy_to_host(got.view(np.uint8), clock.stream)
            digests.add(_digest(got))
    return digests


def _on_cpu(ranks: int, count: int) -> set[str]:
    def work(comm: Any) -> str:
        return _digest(comm.allreduce(_inputs(comm.rank, count), topology="direct"))

    return set(pycollective.local_world(ranks).run(work))


def _processes(ranks: int) -> list[set[str]]:
    """Each rank is a process; memory is shared by CUDA IPC, or in another way that they agree on."""
    command = Launcher("pycollective").command(ranks, [sys.executable, "-m", f"{__package__}.bits"])
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{ranks} processes have not ended after {_SECONDS:.0f} s") from None
    output = [line.split() for line in done.stdout.splitlines()]
    if done.returncode != 0 or len(output) != ranks:
        raise RuntimeError(f"{len(output)} of {ranks} processes have a result: {done.stderr.strip()[-500:]}")
    return [set(digests) for digests in zip(*output, strict=True)]


def main() -> None:
    """One of the processes: write the digest of each result."""
    from pycollective.comm.cuda.arrays import allocate
    from pycollective.comm.cuda.runtime import load

    comm, digests = pycollective.init(), []
    for count in COUNTS:
        x = allocate((count,), "float32", 0)
        x.copy_from_host(_inputs(comm.rank, count).view(np.uint8))
        out = comm.allreduce(x, topology="direct")
        load().synchronize(0)
        comm.check()
        got = np.empty(count, np.float32)
        out.copy_to_host(got.view(np.uint8))
        digests.append(_digest(got))
    # In one write, which a pipe does not split: with PYTHONUNBUFFERED, print() writes each word separately.
    sys.stdout.write(" ".join(digests) + "\n")


if __name__ == "__main__":
    main()
