"""Random tests with new seeds until the time is over: `python -m fuzz.campaign --seconds 3600`.

Each turn prints its seed, with which `--seed SEED --seconds 0` repeats it, and what failed.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
from pathlib import Path

TESTS = Path(__file__).parents[1]
PYTEST = Path(sys.executable).with_name("pytest")
AMOUNT = "4"
"""Times as many cases as in `make test`."""
TRIALS = 20
CALLS = "15000"


def turn(seed: int) -> bool:
    """Whether a turn passes: pytest's random cases, and lost ranks and hosts."""
    variables = {"PC_TEST_SEED": str(seed), "PC_TEST_AMOUNT": AMOUNT}
    variables |= {"PC_TEST_PUBLIC_CALLS": CALLS, "PC_TEST_PRIVATE_CALLS": CALLS}
    first = str(seed * TRIALS)
    commands = [
        [str(PYTEST), "-q", "-n", "2", "-m", "fuzz or hypothesis", f"--hypothesis-seed={seed}", str(TESTS)],
        [sys.executable, "-m", "faults.trials", "--count", str(TRIALS), "--first", first],
        [sys.executable, "-m", "hosts.trials", "--count", str(TRIALS), "--first", first],
    ]
    results = [subprocess.run(command, cwd=TESTS, env={**os.environ, **variables}, check=False) for command in commands]
    return not any(done.returncode for done in results)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=3600, help="no turn begins after that, but the first")
    parser.add_argument("--seed", type=int, help="of the first turn; by default a random one")
    options = parser.parse_args()
    seed = random.randrange(1 << 30) if options.seed is None else options.seed
    end, failed = time.monotonic() + options.seconds, []
    while True:
        print(f"seed {seed}", flush=True)
        if not turn(seed):
            failed.append(seed)
            print(f"FAILED with --seed {seed}", flush=True)
        if time.monotonic() >= end:
            break
        seed += 1
    print(f"failed: {', '.join(map(str, failed)) or 'none'}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
