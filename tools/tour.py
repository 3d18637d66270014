"""Makes examples/tour.ipynb from examples/tour.py, which is the file to edit.

python tools/tour.py            # generates the notebook, executes it, and writes it with its outputs

A cell that raises an error ends it, and so does exceeding MOST_BYTES or MOST_SECONDS.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
SCRIPT, NOTEBOOK = EXAMPLES / "tour.py", EXAMPLES / "tour.ipynb"
MOST_BYTES = 300_000
MOST_SECONDS = 120
"""On a busy machine; on an idle one it takes less than 30."""


def as_notebook(script: Path) -> Any:
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


def generate() -> Any:
    """The notebook of the tour, without outputs."""
    return as_notebook(SCRIPT)


def sources(notebook: Any) -> list[tuple[str, str]]:
    """The type and the text of each cell."""
    return [(cell.cell_type, cell.source) for cell in notebook.cells]


def execute(notebook: Any) -> Any:
    """The notebook with its outputs. Raises nbclient.exceptions.CellExecutionError."""
    from nbclient import NotebookClient

    with tempfile.TemporaryDirectory() as folder:  # outside the source tree: the installed package is imported
        client = NotebookClient(
            notebook,
            timeout=MOST_SECONDS,
            kernel_name="python3",
            record_timing=False,
            coalesce_streams=True,
            resources={"metadata": {"path": folder}},
        )
        executed = client.execute()
    executed.metadata["language_info"] = {"name": "python"}
    return executed


def main() -> int:
    import nbformat

    begin = time.monotonic()
    executed = execute(generate())
    text = nbformat.writes(executed) + "\n"
    seconds = time.monotonic() - begin
    print(f"{NOTEBOOK.name}: {len(executed.cells)} cells, {len(text.encode())} bytes, {seconds:.0f} s")
    if len(text.encode()) > MOST_BYTES or seconds > MOST_SECONDS:
        print(f"more than {MOST_BYTES} bytes or {MOST_SECONDS} s", file=sys.stderr)
        return 1
    NOTEBOOK.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
