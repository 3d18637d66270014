"""Runs the long checks one after another and records their results: `make nightly` (ARGS="asan fuzz": only these).

tests/nightly.json has the date, commit, result and minutes of each target's last run. One that fails does not end the
others.
"""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "tests" / "nightly.json"
TARGETS = ("mutants", "faults", "asan", "course", "versions", "test-old-frameworks", "newest", "wheels", "fuzz")
ARGUMENTS = {"course": "--quick --notebooks"}


def commit() -> str:
    """What is checked out, with -dirty if files have changed."""
    return subprocess.check_output(["git", "describe", "--always", "--dirty"], cwd=ROOT, text=True).strip()


def run(target: str, source: str) -> bool:
    """Make a target of the commit `source` and record its result; returns whether it passed."""
    started = time.monotonic()
    passed = (
        subprocess.run(["make", f"ARGS={ARGUMENTS.get(target, '')}", target], cwd=ROOT, check=False).returncode == 0
    )
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    record[target] = {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "commit": source,
        "result": "passed" if passed else "failed",
        "minutes": round((time.monotonic() - started) / 60),
    }
    RECORD.write_text(json.dumps(record, indent=2, sort_keys=True) + "\n")
    return passed


def main() -> int:
    chosen = sys.argv[1:] or TARGETS
    if unknown := set(chosen) - set(TARGETS):
        sys.exit(f"{', '.join(sorted(unknown))}: not one of {', '.join(TARGETS)}")
    source = commit()  # before the record itself is a changed file
    results = {target: run(target, source) for target in chosen}
    for target, passed in results.items():
        print(f"{'passed' if passed else 'FAILED':8}{target}")
    return not all(results.values())


if __name__ == "__main__":
    sys.exit(main())
