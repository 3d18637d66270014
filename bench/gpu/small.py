"""Every topology at small sizes, checked: for compute-sanitizer. ``python -m bench.gpu.small``"""

from __future__ import annotations

import os
import sys

from pycollective.comm.cuda.virtual import VirtualWorld
from pycollective.schedule import describe

from .candidates.buffers import Buffers
from .candidates.calls import Ours
from .clock import Clock

RANKS = (2, 3)
SIZES = (20, 4096, 200_004)
"""Bytes per rank: packets with an odd end; packets; tiles, the last one short and not a multiple of 16 bytes."""


def main() -> int:
    """Exit status 1 if an element was wrong."""
    clock, wrong, calls = Clock(), 0, 0
    for ranks in RANKS:
        world = VirtualWorld(ranks)
        for dtype in ("float32", "bfloat16"):
            for nbytes in SIZES:
                buffers = Buffers(clock, ranks, dtype, nbytes, l2_bytes=0)
                for collective in ("allreduce", "broadcast"):
                    for topology in (row.name for row in describe()):
                        case = f"{topology} {collective} {dtype} {nbytes} bytes, {ranks} ranks"
                        mine = Ours(world, clock, buffers, collective, topology)
                        buffers.poison()
                        mine.call(0)
                        mine.call(0)  # the second call runs with the state of the first
                        calls += 2
                        try:
                            found = buffers.wrong(collective, exact=topology == "direct" or collective == "broadcast")
                        except TimeoutError as error:
                            print(f"{case}: {error}", flush=True)
                            os._exit(1)  # destructors would wait for the GPU
                        wrong += found
                        fault = mine.fault()
                        if found or fault:
                            print(f"{case}: {found} wrong elements; {fault}")
                        if fault:
                            return 1
    print(f"{calls} calls, {wrong} wrong elements")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
