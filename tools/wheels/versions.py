"""Test the wheel with the lowest and with the newest versions of its dependencies that it allows.

python tools/wheels/versions.py WHEEL FOLDER    # makes FOLDER/lowest and FOLDER/newest, two virtual environments

In each: the commands and their exit codes, in particular that of `verify` for a wrong topology, and an allreduce of
every element type on two ranks. Exits with 1 at the first error.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
import zipfile
from importlib.metadata import PathDistribution
from pathlib import Path

LIMIT = 120  # seconds that one command may take

# Sums correctly, but adds rank 1's contribution twice.
WRONG = '''
from pycollective.schedule.language.registry import topology

@topology("twice")
class Twice:
    """Adds rank 1 twice."""

    def allreduce(self, p):
        for c in p.chunks(1):
            for r in [*range(1, p.size), 1]:
                p[0, c] += p[r, c]
            for r in range(1, p.size):
                p[r, c] = p[0, c]
'''

SMOKE = """
import numpy as np, ml_dtypes, pycollective as pc
from pycollective import _core
from pycollective.comm.arguments.arrays import numpy_dtype
comm = pc.init()
assert comm.size == 2
for name in _core.dtypes():
    x = np.ones(1000).astype(numpy_dtype(name.rstrip("_")))
    total = comm.allreduce(x)
    assert total.dtype == x.dtype and (total.astype(float) == (1 if name.startswith("bool") else 2)).all(), name
assert comm.allreduce(ml_dtypes.bfloat16(1.5)).astype(float) == 3
w = comm.empty(100_000, np.float32)
w[:] = comm.rank
assert (comm.allreduce(w, topology="ring") == 1).all()
assert comm.allgather(np.full((2, 3), comm.rank)).shape == (4, 3)
print("right")
"""

Case = tuple[list[str], int, str]
"""Arguments of `pycollective`, the exit code, and a pattern that its output has."""

CASES: list[Case] = [
    (["--version"], 0, r"^pycollective \d+\.\d+(\.\d+)?(\.dev\d+)?(\+[\w.]+)?$"),
    (["--help"], 0, r"verify"),
    (["run", "--help"], 0, r"one per core"),
    (["topologies"], 0, r"direct"),
    (["topologies", "--json"], 0, r'"name": "direct"'),
    (["verify", "ring", "--ranks", "1-5"], 0, r"\d+ schedules proved in [\d.]+ s\s*$"),
    (["verify", "wrong.py", "--ranks", "2-3"], 1, r"nothing was proved; 1 of 1 collectives failed"),
    (["verify", "rimg"], 2, r"did you mean ring"),
    (["verify", "ring", "--ranks", "none"], 2, r"rank counts"),
    (["draw", "rimg"], 2, r"did you mean ring"),
    (["simulate", "ring", "--ranks", "4", "--sizes", "1K:1M:x32"], 0, r"ring"),
    (["simulate", "ring", "--ranks", "4", "--sizes", "1K", "--json", "-"], 0, r'"ring"'),
    (["doctor", "--json"], 0, r'"tried"'),
    (["run", "-np", "2", "false"], 1, r"rank \d .*exited with code 1"),
    (["run", "-np", "2", "--tag", "smoke.py"], 0, r"\[0\] right\n\[1\] right|\[1\] right\n\[0\] right"),
    (["no-such-command"], 2, r"no-such-command"),
]


WIDE = {**os.environ, "COLUMNS": "200"}
"""So that no phrase of a help text is broken."""


def requirements(wheel: Path) -> list[str]:
    """The wheel's dependencies, without its extras."""
    [folder] = [each for each in zipfile.Path(wheel).iterdir() if each.name.endswith(".dist-info")]
    return [line for line in PathDistribution(folder).requires or () if "extra ==" not in line]


def lowest(lines: list[str]) -> list[str]:
    """Every requirement at its lower bound: `numpy==1.24` for `numpy>=1.24,<3`."""
    found = []
    for line in lines:
        match = re.fullmatch(r"([\w-]+)\s*>=\s*([\w.]+)(,[^;]*)?", line)
        if match is None:
            raise SystemExit(f"{line}: a dependency is written as name>=version, perhaps with an upper bound")
        found.append(f"{match[1]}=={match[2]}")
    return found


def try_all(python: Path, folder: Path) -> None:
    """Run every case in `folder`; raises SystemExit at the first failure."""
    (folder / "wrong.py").write_text(WRONG)
    (folder / "smoke.py").write_text(SMOKE)
    for words, code, pattern in CASES:
        command = [str(python), "-I", "-m", "pycollective", *words]
        done = subprocess.run(command, cwd=folder, env=WIDE, capture_output=True, text=True, timeout=LIMIT, check=False)
        output = done.stdout + done.stderr
        if done.returncode != code or not re.search(pattern, output, re.MULTILINE):
            raise SystemExit(f"{' '.join(words)}: exit code {done.returncode}, not {code} with {pattern!r}:\n{output}")


def main(wheel: Path, folder: Path) -> None:
    """Create and test both environments."""
    own = requirements(wheel)
    for name, needs in (("lowest", lowest(own)), ("newest", ["--upgrade", *own])):
        home = folder / name
        venv.create(home, clear=True, with_pip=True)
        pip: list[str | Path] = [home / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "-qq", "install"]
        subprocess.run([*pip, "--no-compile", *needs], check=True)  # few of the modules are loaded
        subprocess.run([*pip, "--no-deps", wheel], check=True)
        subprocess.run([*pip[:-2], "check"], check=True, stdout=subprocess.DEVNULL)
        frozen = subprocess.run([*pip[:-2], "freeze"], check=True, capture_output=True, text=True).stdout.split()
        print(f"{name}: {' '.join(line for line in frozen if '==' in line)}", flush=True)
        try_all(home / "bin" / "python", home)
        print(f"{name}: {len(CASES)} commands are right", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())
