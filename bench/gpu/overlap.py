"""The slowdown of a matrix product during an allreduce, by thread blocks. ``python -m bench.gpu.overlap``"""

from __future__ import annotations

import argparse
import functools
import itertools
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pycollective.cli.outputs import json_text

from .candidates import nccl
from .candidates.buffers import why_no_torch
from .candidates.calls import Ours
from .clock import Candidate
from .parts import Bench, Scale
from .rows import provenance

BYTES = 64 << 20
"""Bytes of each rank's array."""
SIDE = 8192
"""Rows and columns of the matrices, bfloat16."""
PRODUCTS = 10
CHANNELS = (0, 1, 2, 4, 8)
"""Thread blocks per rank; 0 for as many as there are."""


def main() -> int:
    """Exit status 1 if torch cannot use a GPU here."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.overlap", description="A matrix product beside calls.")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--output", type=Path, help="where the JSON goes")
    options = parser.parse_args()
    if reason := why_no_torch():
        print(f"nothing to measure: {reason}", file=sys.stderr)
        return 1
    bench = Bench(options.ranks, Scale(ceiling_bytes=1 << 28), lambda _: None)
    nccl.prepare(options.ranks, bench.world.channels * options.ranks)
    result: dict[str, Any] = {"provenance": provenance(bench.clock.cuda, 0, bench.ceiling, nccl.about(options.ranks))}
    product = _product()
    result["product_seconds"] = alone = _seconds(product, lambda: None)
    result["overlap"] = rows = []
    for candidate in _candidates(bench):
        candidate.call(0)
        bench.clock.synchronize()
        call = bench.clock.between_events(functools.partial(candidate.call, 0))
        calls = max(1, round(2 * PRODUCTS * alone / call))  # longer than the products take

        def fill(candidate: Candidate = candidate, calls: int = calls) -> None:
            for i in range(calls):
                candidate.call(i)

        seconds = _seconds(product, fill)
        bench.clock.synchronize()
        rows.append({"candidate": candidate.name, "call_seconds": call, "product_seconds": seconds})
        print(f"{candidate.name}: {call * 1e3:.3f} ms a call alone; the product takes {seconds / alone:.2f} as long")
        result["conclusion"] = conclusion(rows, alone)
        if options.output:
            options.output.write_text(json_text(result) + "\n")
    print(result["conclusion"])
    return 0


def conclusion(rows: Sequence[Mapping[str, Any]], alone: float) -> str:
    """The smallest slowdown at 90% of our highest rate, against NCCL's; the goal is half of that.

    Args:
        rows: of the candidates, as in the JSON.
        alone: seconds of a product without calls.
    """
    ours = [row for row in rows if row["candidate"] != "nccl"]
    enough = min(row["call_seconds"] for row in ours) / 0.9
    least = min((row for row in ours if row["call_seconds"] <= enough), key=lambda row: row["product_seconds"])
    text = f"{least['candidate']}: a product takes {least['product_seconds'] / alone - 1:.0%} longer"
    for row in rows:
        if row["candidate"] == "nccl":
            text += f"; beside NCCL {row['product_seconds'] / alone - 1:.0%}; goal: at most half"
    return text


def _candidates(bench: Bench) -> list[Candidate]:
    """Ours with fewer and fewer blocks, and NCCL if available: last, since it may hang."""
    buffers = bench.buffers("bfloat16", BYTES)
    made = [Ours(bench.world, bench.clock, buffers, "allreduce", "direct", channels).candidate for channels in CHANNELS]
    library, _, reason = nccl.find()
    if library is None:
        print(f"without NCCL: {reason}")
    else:
        made.append(nccl.Nccl(library, bench.clock, bench.ranks).candidate(buffers, "allreduce"))
    return made


def _product() -> Callable[[], object]:
    import torch

    a, b = (torch.randn(SIDE, SIDE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    return functools.partial(torch.matmul, a, b, out=out)


def _seconds(product: Callable[[], object], before: Callable[[], None]) -> float:
    """Median seconds of a product; `before` first enqueues work in another stream."""
    import torch

    product()
    torch.cuda.synchronize()
    before()
    events: list[Any] = [torch.cuda.Event(enable_timing=True) for _ in range(PRODUCTS + 1)]
    for event in events[:-1]:
        event.record()
        product()
    events[-1].record()
    torch.cuda.synchronize()
    return float(statistics.median(a.elapsed_time(b) / 1e3 for a, b in itertools.pairwise(events)))


if __name__ == "__main__":
    sys.exit(main())
