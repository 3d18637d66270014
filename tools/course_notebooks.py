"""Makes a notebook of each lab of examples/course, beside its script, which is the file to edit.

python tools/course_notebooks.py                                    # writes examples/course/NAME.ipynb, without outputs
python tools/course_notebooks.py --execute NAME --out FOLDER --quick     # FOLDER/NAME.ipynb, executed in a real kernel

Git ignores them. Options other than --execute and --out are those of the lab.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path
from typing import Any

from tour import EXAMPLES, as_notebook

sys.path.append(str(EXAMPLES.parent))  # after the installed package
from examples.course.__main__ import labs

COURSE = EXAMPLES / "course"
MOST_SECONDS = 600
"""For a cell, on a busy machine."""


def generate(name: str) -> Any:
    """The notebook of a lab, without outputs: reproducible."""
    return as_notebook(COURSE / f"{name}.py")


def execute(notebook: Any, options: list[str]) -> None:
    """Execute the notebook, which then has its outputs, and print the text of each cell once it has been executed.

    Args:
        options: of the lab, in place of a command line.

    Raises:
        nbclient.exceptions.CellExecutionError: an error in a cell, which is shown.
    """
    from nbclient import NotebookClient

    def show(cell: Any, **_: Any) -> None:
        for output in cell.get("outputs", []):
            if output.output_type == "stream" and output.name == "stdout":
                print(output.text, end="", flush=True)

    os.environ["COURSE_ARGS"] = shlex.join(options)
    resources = {"metadata": {"path": str(COURSE)}}  # the labs import what they share from there
    client = NotebookClient(notebook, timeout=MOST_SECONDS, kernel_name="python3", resources=resources)
    client.on_cell_executed = show
    client.execute()


def main() -> int:
    import nbformat

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--execute", metavar="NAME", choices=labs())
    parser.add_argument("--out", type=Path, default=Path("course-out"), metavar="FOLDER")
    args, words = parser.parse_known_args()
    if args.execute:
        args.out.mkdir(parents=True, exist_ok=True)
        notebook = generate(args.execute)
        execute(notebook, ["--out", str(args.out.resolve()), *words])
        (args.out / f"{args.execute}.ipynb").write_text(nbformat.writes(notebook) + "\n")
        return 0
    if words:
        parser.error(f"{words[0]} is for --execute")
    for name in labs():
        (COURSE / f"{name}.ipynb").write_text(nbformat.writes(generate(name)) + "\n")
        print(f"{name}.ipynb")
    return 0


if __name__ == "__main__":
    sys.exit(main())
