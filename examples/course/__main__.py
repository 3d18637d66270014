"""Runs all labs one after another: python -m examples.course [--quick] [--only NAME] [--notebooks]

Each is a process, as if started by hand; with --notebooks it is executed as a notebook instead, which is kept beside
its figures. At the end a table: name, seconds, conclusion. If a lab fails, the others still run; exit code 1 then.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent
NOTEBOOKS = HERE.parents[1] / "tools" / "notebooks.py"


def labs() -> list[str]:
    """The names of the labs: the scripts that start as one."""
    scripts = [path for path in sorted(HERE.glob("[a-z]*.py")) if path.stem != "lab"]
    return [path.stem for path in scripts if "= lab.start(" in path.read_text(encoding="utf-8")]


def run(name: str, words: list[str], out: Path, notebook: bool) -> tuple[float, str]:
    """(seconds, conclusion) of a lab; a conclusion that begins with FAILED if it has failed."""
    result = out / f"{name}.json"
    result.unlink(missing_ok=True)
    script = [NOTEBOOKS, name] if notebook else [HERE / f"{name}.py"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    begin = time.monotonic()
    code = subprocess.run([sys.executable, *script, "--out", out, *words], env=environment).returncode
    seconds = time.monotonic() - begin
    if code or not result.exists():
        return seconds, f"FAILED with exit code {code}" if code else "FAILED: no conclusion"
    return seconds, json.loads(result.read_text())["conclusion"]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m examples.course",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        epilog="Other options are those of the labs, such as --ranks 4 or --data fashion-mnist.",
    )
    parser.add_argument("--only", action="append", metavar="NAME", choices=labs(), help="this lab; may be repeated")
    parser.add_argument("--notebooks", action="store_true", help="needs jupytext, nbclient and ipykernel")
    parser.add_argument("--out", type=Path, default=Path("course-out"), metavar="FOLDER", help="for the figures")
    args, words = parser.parse_known_args()
    missing = [name for name in ("jupytext", "nbclient", "ipykernel") if args.notebooks and find_spec(name) is None]
    if missing:
        parser.exit(2, f"--notebooks needs {' '.join(missing)}: pip install {' '.join(missing)}\n")
    out = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    results = {}
    for name in args.only or labs():
        print(f"\n=== {name}", flush=True)
        results[name] = run(name, words, out, args.notebooks)
    print()
    for name, (seconds, conclusion) in results.items():
        print(f"{name:24} {seconds:4.0f} s  {conclusion}")
    print(f"{'all':24} {sum(seconds for seconds, _ in results.values()):4.0f} s")
    return int(any(conclusion.startswith("FAILED") for _, conclusion in results.values()))


if __name__ == "__main__":
    sys.exit(main())
