"""Makes a notebook of each lab of examples/course, beside its script, which is the file to edit.

python tools/course_notebooks.py                  # writes examples/course/NAME.ipynb, without outputs; ignored by git
python tools/course_notebooks.py --execute        # also executes each in its --quick form, in a real kernel
python tools/course_notebooks.py --only NAME ...  # some of them
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from typing import Any

from tour import EXAMPLES, as_notebook

COURSE = EXAMPLES / "course"
MOST_SECONDS = 600
"""For a cell, on a busy machine."""


def labs() -> list[str]:
    """The names of the labs: the scripts that start as one."""
    scripts = [path for path in sorted(COURSE.glob("[a-z]*.py")) if path.stem != "lab"]
    return [path.stem for path in scripts if "= lab.start(" in path.read_text(encoding="utf-8")]


def generate(name: str) -> Any:
    """The notebook of a lab, without outputs: reproducible."""
    return as_notebook(COURSE / f"{name}.py")


def execute(notebook: Any, options: str) -> Any:
    """The notebook with its outputs. Raises nbclient.exceptions.CellExecutionError.

    Args:
        options: of the lab, in place of a command line.
    """
    from nbclient import NotebookClient

    os.environ["COURSE_ARGS"] = options
    resources = {"metadata": {"path": str(COURSE)}}  # the labs import what they share from there
    return NotebookClient(notebook, timeout=MOST_SECONDS, kernel_name="python3", resources=resources).execute()


def main() -> int:
    import nbformat

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--execute", action="store_true")
    parser.add_argument("--only", nargs="+", choices=labs(), default=labs(), metavar="NAME")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="course-") as figures:
        for name in args.only:
            notebook = generate(name)
            (COURSE / f"{name}.ipynb").write_text(nbformat.writes(notebook) + "\n")
            if args.execute:
                execute(notebook, f"--quick --out {figures}")
            print(f"{name}.ipynb", "executed" if args.execute else "", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
