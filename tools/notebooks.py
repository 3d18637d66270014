"""Makes notebooks of examples, which are scripts: those are the files to edit. Every cell is executed in a real kernel.

python tools/notebooks.py                             # examples/tour.ipynb of examples/tour.py
python tools/notebooks.py LAB --out FOLDER --quick    # FOLDER/LAB.ipynb of examples/course/LAB.py

Options other than --out are the lab's. A cell that raises an error ends it; the tour may not exceed MOST_BYTES.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
COURSE = EXAMPLES / "course"
TOUR = EXAMPLES / "tour.py"
MOST_BYTES = 300_000
MOST_SECONDS = 600
"""For a cell, on a busy machine."""


def generate(script: Path) -> Any:
    """A script as a notebook without outputs: reproducible."""
    import jupytext

    notebook = jupytext.read(script)
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for number, cell in enumerate(notebook.cells):
        cell.id, cell.metadata = f"cell-{number}", {}
    return notebook


def execute(script: Path, folder: str | Path) -> str:
    """The text of a script's notebook with its outputs, executed in a folder; what a cell prints is shown after it.

    Raises:
        nbclient.exceptions.CellExecutionError: an error in a cell, which is shown.
    """
    import nbformat
    from nbclient import NotebookClient

    def show(cell: Any, **_: Any) -> None:
        for output in cell.get("outputs", []):
            if output.output_type == "stream" and output.name == "stdout":
                print(output.text, end="", flush=True)

    client = NotebookClient(
        generate(script),
        timeout=MOST_SECONDS,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(folder)}},
    )
    client.on_cell_executed = show
    executed = client.execute()
    executed.metadata["language_info"] = {"name": "python"}
    return f"{nbformat.writes(executed)}\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("lab", nargs="?", metavar="LAB")
    parser.add_argument("--out", type=Path, default=Path("course-out"), metavar="FOLDER")
    options, words = parser.parse_known_args()
    if options.lab:
        options.out.mkdir(parents=True, exist_ok=True)
        os.environ["COURSE_ARGS"] = shlex.join(["--out", str(options.out.resolve()), *words])
        text = execute(COURSE / f"{options.lab}.py", COURSE)  # the labs import what they share from there
        (options.out / f"{options.lab}.ipynb").write_text(text)
        return
    with tempfile.TemporaryDirectory() as folder:  # outside the source tree: the installed package is imported
        text = execute(TOUR, folder)
    if len(text.encode()) > MOST_BYTES:
        sys.exit(f"{len(text.encode())} bytes are more than {MOST_BYTES}")
    TOUR.with_suffix(".ipynb").write_text(text)


if __name__ == "__main__":
    main()
