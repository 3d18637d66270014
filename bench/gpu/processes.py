"""Processes on one GPU, through their windows, against the CPU: ``pycollective run -n 8 python -m bench.gpu.processes``

They take turns on the GPU: correctness is reported, not time.
"""

from __future__ import annotations

import sys

import numpy as np

import pycollective as pc
from pycollective.comm.cuda.arrays import allocate
from pycollective.comm.cuda.runtime import load, why_not
from pycollective.schedule import describe

COUNTS = (5, 1000, 50_001)
"""Elements: packets with an odd end; packets; tiles, the last one short."""


def main() -> int:
    """Exit status 1 if there is no GPU, or if a result's bits differ from the CPU's."""
    if reason := why_not():
        print(f"nothing to check: {reason}", file=sys.stderr)
        return 1
    comm = pc.init()
    cuda, wrong, calls = load(), 0, 0
    for count in COUNTS:
        x = np.random.default_rng(comm.rank).standard_normal(count).astype(np.float32)
        window = comm.empty(count, np.float32, device="cuda")
        plain = allocate((count,), "float32", 0)
        for row in describe():
            before = wrong
            expected = comm.allreduce(x, topology=row.name)
            for array in (window, plain):
                array.copy_from_host(x.view(np.uint8))
                comm.allreduce(array, out=array, topology=row.name)
                cuda.synchronize(0)
                found = np.empty_like(x)
                array.copy_to_host(found.view(np.uint8))
                wrong += int(np.count_nonzero(found.view(np.uint32) != expected.view(np.uint32)))
                calls += 1
            if comm.rank == 0:
                print(f"{row.name}, {count} elements: {wrong - before} differ", flush=True)
    comm.check()
    if comm.rank == 0:
        print(comm.explain("allreduce", 1 << 20))
    print(f"rank {comm.rank} of {comm.size}: {calls} calls, {wrong} elements differ from the CPU's")
    pc.shutdown()
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
