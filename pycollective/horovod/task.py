"""The program that a rank of `horovod.run` runs: `python -m pycollective.horovod.task [FOLDER]`.

On one host the call is in the folder, and its result is stored there. Without a folder both go through the driver that
has started the rank.
"""

from __future__ import annotations

import os
import pickle
import sys
from multiprocessing import spawn
from pathlib import Path

from pycollective import horovod
from pycollective.elastic.task import run_task
from pycollective.horovod.launching import pickler


def main(folder: Path | None) -> None:
    """Make the call, and hand in its result under the rank's number."""
    horovod.install()
    if folder is not None:
        result = _make((folder / "task").read_bytes())
        (folder / os.environ["PYCOLLECTIVE_RANK"]).write_bytes(result)
    else:
        run_task(_make)


def _make(task: bytes) -> bytes:
    """The result of a call, both pickled."""
    here, call = pickle.loads(task)
    spawn.prepare(here)  # before the call is unpickled, which may need the caller's script and modules
    func, args, kwargs = pickle.loads(call)
    result: bytes = pickler().dumps(func(*args, **kwargs))
    return result


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else None)
