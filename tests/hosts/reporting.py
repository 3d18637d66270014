"""A rank that runs a few lines and reports how they ended: `main(FOLDER, LINES)`, started by forked.py."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from pathlib import Path

import numpy as np

import pycollective


def main(folder: str, lines: str) -> None:
    """Writes to FOLDER/RANK: what the lines have left in `result`, or their error; and how many seconds it took."""
    started, names = time.monotonic(), {"pc": pycollective, "np": np, "folder": Path(folder), "result": ""}
    try:
        exec(lines, names)
        text = str(names["result"])
    except pycollective.Error as error:
        text = f"{type(error).__name__}: {error}"
    except Exception:
        text = traceback.format_exc()
    path = Path(folder, os.environ["TEST_RANK"])  # it may claim another one
    path.with_suffix(".new").write_text(json.dumps([text, time.monotonic() - started]))
    path.with_suffix(".new").rename(path)
    sys.stdout.flush()
    os._exit(0)
