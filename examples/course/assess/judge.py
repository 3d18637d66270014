"""What is wrong with a run of a student's script, in a sentence each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .run import Run

CHECKS = "runs", "distributed", "partition", "broadcast", "checkpoint", "accuracy"
PARTITION = "give each its part: DistributedSampler(train, hvd.size(), hvd.rank()), or x[hvd.rank() :: hvd.size()]"
BROADCAST = (
    "call hvd.broadcast_parameters and broadcast_optimizer_state (in Keras: BroadcastGlobalVariablesCallback(0))"
)
ACCURACIES = re.compile(r"training accuracy\D*?(\d*\.\d+).*?validation accuracy\D*?(\d*\.\d+)")

Finding = tuple[str, str]
"""The name of a check, and what is wrong."""


def judge(done: Run, script: Path, targets: tuple[float, ...]) -> Iterator[Finding]:
    """What is wrong with a run; nothing if it meets all checks."""
    yield from _runs(done, script)
    if len(done.records) < done.ranks or any(record["error"] for record in done.records.values()):
        return
    records = [done.records[rank] for rank in range(done.ranks)]
    distributed = list(_distributed(records, done.ranks))
    yield from distributed
    if not distributed:
        yield from _partition(records)
        yield from _broadcast(records)
    yield from _checkpoint(records)
    yield from _accuracy(done, targets)


def _runs(done: Run, script: Path) -> Iterator[Finding]:
    for rank, record in sorted(done.records.items()):
        if record["error"]:
            yield "runs", f"rank {rank} failed at {script.name}, {record['error']}"
            return
    missing = [rank for rank in range(done.ranks) if rank not in done.records]
    if done.code is None:
        where = re.compile(rf'{re.escape(str(script))}", line (\d+)')
        found = {rank: where.search(done.stacks.get(rank, "")) for rank in missing}
        places = ", ".join(f"rank {rank} is at line {line[1]}" for rank, line in found.items() if line)
        ended = f"; ended: {_ranks(sorted(done.records))}" if done.records else ""
        yield "runs", f"not done after {done.seconds:.0f} s: it waits forever, or is too slow: {places}{ended}"
    elif done.code:
        lines = [line.strip() for line in done.errors.splitlines() if line.strip(" -")]  # without mpirun's frames
        yield "runs", f"the job ended with exit code {done.code}: {' / '.join(lines[-3:])}"
    elif missing:
        yield "runs", f"{_ranks(missing)} ended without returning from the script"


def _distributed(records: list[dict[str, Any]], ranks: int) -> Iterator[Finding]:
    sizes, steps = ([record[of] for record in records] for of in ("size", "steps"))
    if not any(sizes):
        yield "distributed", f"it never calls hvd.init(): these are {ranks} serial runs, each on its own"
    elif set(sizes) != {ranks}:
        yield "distributed", f"hvd.size() on the ranks is {sizes}, not {ranks}"
    elif not any(steps):
        yield "distributed", "no gradient is reduced: wrap the optimizer with hvd.DistributedOptimizer"
    elif len(set(steps)) > 1:
        yield "distributed", f"the ranks take different numbers of steps: {steps}"


def _partition(records: list[dict[str, Any]]) -> Iterator[Finding]:
    for step, digests in enumerate(zip(*(record["gradients"] for record in records), strict=False)):
        same = [rank for rank, digest in enumerate(digests) if digests.count(digest) > 1]
        if same:
            yield (
                "partition",
                f"in step {step} {_ranks(same)} have equal gradients before the reduction, from equal images",
            )
            return
    all_of_them = [rank for rank, record in enumerate(records) if record["longest"] >= record["images"] > 0]
    if all_of_them:
        yield "partition", f"an epoch of {_ranks(all_of_them)} is over all {records[0]['images']} images; {PARTITION}"


def _broadcast(records: list[dict[str, Any]]) -> Iterator[Finding]:
    if not any(record["broadcasts"] for record in records):
        yield "broadcast", f"rank 0's state is never broadcast, so the ranks begin differently; {BROADCAST}"
    ends = [record["parameters"] for record in records]
    if differing := [rank for rank, end in enumerate(ends) if end != ends[0]]:
        yield "broadcast", f"in the end the parameters of {_ranks(differing)} are not those of rank 0"


def _checkpoint(records: list[dict[str, Any]]) -> Iterator[Finding]:
    written = {path for path, how in records[0]["files"] if how == "written"}
    for rank, record in enumerate(records[1:], 1):
        for path, how in record["files"]:
            if how == "written":
                yield "checkpoint", f"rank {rank} writes {Path(path).name}: only rank 0 may, `if hvd.rank() == 0:`"
                return
            if path in written:
                yield "checkpoint", f"rank {rank} reads {Path(path).name}: let rank 0 read and broadcast it"
                return
    if not written:
        yield "checkpoint", "rank 0 writes no checkpoint"


def _accuracy(done: Run, targets: tuple[float, ...]) -> Iterator[Finding]:
    printed = ACCURACIES.findall(done.printed.get(0, ""))
    others = [rank for rank, text in done.printed.items() if rank and ACCURACIES.search(text)]
    if not done.printed.get(0, "").strip():
        yield "runs", "rank 0 prints nothing: its last line must be 'training accuracy 0.97  validation accuracy 0.95'"
    elif not printed:
        yield "runs", "rank 0 prints no line like 'training accuracy 0.97  validation accuracy 0.95'"
    else:
        for name, text, target in zip(("training", "validation"), printed[-1], targets, strict=False):
            if not float(text) >= target:
                yield "accuracy", f"the {name} accuracy is {float(text):.4f}, the target {target}"
    if others:
        yield "runs", f"the accuracies are printed by {_ranks(others)} too: only rank 0 may"


def judged(findings: list[Finding], done: Run) -> set[str]:
    """The checks that could be made: without complete records only the first, and serial runs have no gradients."""
    if len(done.records) < done.ranks or any(record["error"] for record in done.records.values()):
        return {"runs"}
    made = set(CHECKS) - ({"partition", "broadcast"} if "distributed" in dict(findings) else set())
    return made if ACCURACIES.search(done.printed.get(0, "")) else made - {"accuracy"}


def _ranks(numbers: list[int]) -> str:
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"
