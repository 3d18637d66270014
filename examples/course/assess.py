"""Checks a student's converted script: python -m examples.course.assess my_script.py --ranks 4

The script is run on several ranks, unchanged, and must meet all of these:

    runs          it ends by itself within the time, without an error, and rank 0 prints its accuracies
    distributed   all ranks are one job, and a DistributedOptimizer reduces their gradients
    partition     the ranks train on different images: their own gradients differ, and no rank passes over all images
    broadcast     rank 0's state is broadcast, and in the end all ranks have the same parameters, bit for bit
    checkpoint    a file is written, by rank 0; no other rank opens it
    accuracy      training and validation accuracy reach the targets

assess_probe.py records what the ranks do. Exit code: 0 if all are met, 1 if not, 2 if the options are wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
CHECKS = "runs", "distributed", "partition", "broadcast", "checkpoint", "accuracy"
TARGETS = {"digits": (0.95, 0.93, 5), "fashion-mnist": (0.85, 0.84, 30), "cifar-10": (0.65, 0.60, 60)}
"""Data -> training accuracy, validation accuracy, minutes."""
PARTITION = "give each its part: DistributedSampler(train, hvd.size(), hvd.rank()), or x[hvd.rank() :: hvd.size()]"
BROADCAST = (
    "hvd.broadcast_parameters and broadcast_optimizer_state, in Keras callbacks.BroadcastGlobalVariablesCallback(0)"
)
ACCURACIES = re.compile(r"training accuracy\D*?(\d*\.\d+).*?validation accuracy\D*?(\d*\.\d+)")
TOKEN = "COURSE_ASSESSMENT"
"""Environment variable by which the processes of a run are found."""


@dataclass
class Run:
    """What a run of the script has left.

    Attributes:
        ranks: number of ranks.
        code: exit code of the launcher; None: it was ended after `seconds`.
        seconds: duration.
        records: rank -> the record of assess_probe.py, of the ranks that have ended by themselves.
        printed: rank -> standard output.
        stacks: rank -> where it was when the time was over.
        errors: standard error of all ranks.
    """

    ranks: int
    code: int | None = None
    seconds: float = 0.0
    records: dict[int, dict[str, Any]] = field(default_factory=dict)
    printed: dict[int, str] = field(default_factory=dict)
    stacks: dict[int, str] = field(default_factory=dict)
    errors: str = ""


def run(script: Path, ranks: int, words: list[str], seconds: float, mpi: bool) -> Run:
    """Run the script on `ranks` ranks, in an empty folder, for at most `seconds`."""
    with tempfile.TemporaryDirectory(prefix="assess-") as name:
        work, notes = Path(name, "work"), Path(name, "notes")
        work.mkdir(), notes.mkdir()
        probe = [sys.executable, str(HERE / "assess_probe.py"), str(notes), str(max(1.0, seconds - 2))]
        command = [*_launcher(ranks, mpi), *probe, str(script), *words]
        token = secrets.token_hex(8)
        environment = {**os.environ, TOKEN: token, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        environment |= {"TF_CPP_MIN_LOG_LEVEL": "3", "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
        done, begin = Run(ranks), time.monotonic()
        with open(Path(name, "errors"), "w+") as errors:  # a file: a process that is left cannot block us
            process = subprocess.Popen(command, cwd=work, env=environment, stderr=errors, start_new_session=True)
            try:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    done.code = process.wait(seconds)
            finally:
                if process.poll() is None:
                    process.terminate()  # the launcher ends its ranks
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(10)
                done.seconds = time.monotonic() - begin
                _kill_all(token)
                process.wait()
            errors.seek(0)
            done.errors = errors.read()
        for rank in range(ranks):
            with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):  # of a rank that was ended early
                done.printed[rank] = (notes / f"{rank}.out").read_text(errors="replace")
                done.stacks[rank] = (notes / f"{rank}.stack").read_text(errors="replace")
                done.records[rank] = json.loads((notes / f"{rank}.json").read_text())
    return done


def _launcher(ranks: int, mpi: bool) -> list[str]:
    if not mpi:
        return [sys.executable, "-m", "pycollective", "run", "-np", str(ranks)]
    sibling = Path(sys.executable).with_name("mpirun")
    mpirun = str(sibling) if sibling.exists() else shutil.which("mpirun")
    if mpirun is None:
        raise FileNotFoundError("there is no mpirun; without --mpi the ranks are started by `pycollective run`")
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return [mpirun, *root, "-np", str(ranks)]


def _kill_all(token: str) -> None:
    """Kill the processes of a run that are left, which have its token in their environment."""
    wanted = f"{TOKEN}={token}".encode()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if int(entry.name) != os.getpid() and wanted in (entry / "environ").read_bytes().split(b"\0"):
                os.kill(int(entry.name), signal.SIGKILL)


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
        ended = f"; ended: ranks {sorted(done.records)}" if done.records else ""
        yield "runs", f"not done after {done.seconds:.0f} s: it waits forever, or is too slow: {places}{ended}"
    elif done.code:
        yield "runs", f"the job ended with exit code {done.code}: {' / '.join(done.errors.splitlines()[-3:])}"
    elif missing:
        yield "runs", f"ranks {missing} ended without returning from the script"


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
                f"in step {step} ranks {same} have equal gradients before the reduction, from equal images",
            )
            return
    all_of_them = [rank for rank, record in enumerate(records) if record["longest"] >= record["images"] > 0]
    if all_of_them:
        yield "partition", f"ranks {all_of_them} pass over all {records[0]['images']} images in an epoch; {PARTITION}"


def _broadcast(records: list[dict[str, Any]]) -> Iterator[Finding]:
    if not any(record["broadcasts"] for record in records):
        yield "broadcast", f"rank 0's state is never broadcast, so the ranks begin differently; {BROADCAST}"
    ends = [record["parameters"] for record in records]
    if differing := [rank for rank, end in enumerate(ends) if end != ends[0]]:
        yield "broadcast", f"in the end the parameters of ranks {differing} are not those of rank 0"


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
        yield "runs", f"ranks {others} print the accuracies too: only rank 0 may"


def judged(findings: list[Finding], done: Run) -> set[str]:
    """The checks that could be made: without complete records only the first, and serial runs have no gradients."""
    if len(done.records) < done.ranks or any(record["error"] for record in done.records.values()):
        return {"runs"}
    return set(CHECKS) - ({"partition", "broadcast"} if "distributed" in dict(findings) else set())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("script", type=Path)
    parser.add_argument("--ranks", type=int, default=4, metavar="N", help="number of ranks, at least 2 (default: 4)")
    parser.add_argument("--data", default="digits", choices=TARGETS)
    parser.add_argument("--folder", type=Path, help="of the data's files")
    parser.add_argument("--epochs", type=int, help="passed to the script; by default the script decides")
    parser.add_argument("--training", type=float, help="target of the training accuracy; default: see TARGETS")
    parser.add_argument("--validation", type=float, help="target of the validation accuracy")
    parser.add_argument("--minutes", type=float, help="time limit")
    parser.add_argument("--mpi", action="store_true", help="start the ranks by mpirun instead of `pycollective run`")
    args = parser.parse_args()
    if not args.script.is_file():
        parser.error(f"there is no script {args.script}")
    if args.ranks < 2:
        parser.error(f"--ranks: {args.ranks} is less than 2, so nothing would be distributed")
    given = args.training, args.validation, args.minutes
    targets = tuple(default if of is None else of for of, default in zip(given, TARGETS[args.data], strict=True))
    words = [f"--data={args.data}", *([f"--folder={args.folder.resolve()}"] if args.folder else [])]
    words += [f"--epochs={args.epochs}"] if args.epochs is not None else []
    script = args.script.resolve()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the ranks are ended too
    try:
        done = run(script, args.ranks, words, targets[2] * 60, args.mpi)
    except FileNotFoundError as error:
        parser.error(str(error))
    findings = list(judge(done, script, targets))
    for check in CHECKS:
        wrong = [text for name, text in findings if name == check]
        result = "FAILED" if wrong else "passed" if check in judged(findings, done) else "-"
        print(f"{check:12} {result:7} {' '.join(wrong)}".rstrip())
    print(f"{args.script.name} on {args.ranks} ranks, {done.seconds:.0f} s: {'FAILED' if findings else 'passed'}")
    return int(bool(findings))


if __name__ == "__main__":
    sys.exit(main())
