"""Checks a student's converted script: python -m examples.course.assess my_script.py --ranks 4

The script is run on several ranks, unchanged, and must meet all of these:

    runs          it ends by itself within the time, without an error, and rank 0 prints its accuracies
    distributed   all ranks are one job, and a DistributedOptimizer reduces their gradients
    partition     the ranks train on different images: their own gradients differ, and no rank passes over all images
    broadcast     rank 0's state is broadcast, and in the end all ranks have the same parameters, bit for bit
    checkpoint    a file is written, by rank 0; no other rank opens it
    accuracy      training and validation accuracy reach the targets

probe.py records what the ranks do. Exit code: 0 if all are met, 1 if not, 2 if the options are wrong.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from .judge import CHECKS, judge, judged
from .run import run

TARGETS = {"digits": (0.95, 0.93, 5), "fashion-mnist": (0.90, 0.88, 30), "cifar-10": (0.78, 0.55, 45)}
"""Data -> training accuracy, validation accuracy, minutes."""


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m examples.course.assess",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
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
        print(f"{check:12} {result:7} {'; '.join(wrong)}".rstrip())
    print(f"{args.script.name} on {args.ranks} ranks, {done.seconds:.0f} s: {'FAILED' if findings else 'passed'}")
    return int(bool(findings))


if __name__ == "__main__":
    sys.exit(main())
