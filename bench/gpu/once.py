"""One call after warm-up, for a profiler: ``ncu ... python -m bench.gpu.once --ranks 8 --bytes 268435456``"""

from __future__ import annotations

import argparse
import sys

from .candidates.calls import Ours
from .parts import COLLECTIVES, TOPOLOGIES, Bench, Scale

WARM = 3
"""Calls that a profiler skips (ncu's --launch-skip)."""


def main() -> int:
    """Exit status 1 if an element was wrong."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.once", description="One call, to be profiled.")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--bytes", type=int, default=1 << 28, help="of each rank")
    parser.add_argument("--dtype", default="float32", choices=Scale().dtypes)
    parser.add_argument("--collective", default="allreduce", choices=COLLECTIVES)
    parser.add_argument("--topology", default="direct", choices=TOPOLOGIES)
    parser.add_argument("--channels", type=int, default=0, help="maximum number of thread blocks per rank")
    options = parser.parse_args()
    bench = Bench(options.ranks, Scale(ceiling_bytes=1 << 20, rounds=1), lambda _: None)
    buffers = bench.buffers(options.dtype, options.bytes)
    mine = Ours(bench.world, bench.clock, buffers, options.collective, options.topology, options.channels)
    buffers.poison()
    for i in range(WARM + 1):
        mine.call(i * buffers.sets)  # the checked set
    wrong = buffers.wrong(options.collective, exact=options.topology == "direct" or options.collective == "broadcast")
    print(f"{mine.candidate.name} on {mine.channels} channels, {wrong} wrong elements")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
