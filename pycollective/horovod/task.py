"""The program that a rank of `horovod.run` runs: `python -m pycollective.horovod.task FOLDER`."""

from __future__ import annotations

import os
import pickle
import sys
from multiprocessing import spawn
from pathlib import Path

from pycollective import horovod
from pycollective.horovod.launching import pickler


def main(folder: Path) -> None:
    """Run the task in the folder and store its result there, under the rank's number."""
    horovod.install()
    here, call = pickle.loads((folder / "task").read_bytes())
    spawn.prepare(here)  # before the call is unpickled, which may need the caller's script and modules
    func, args, kwargs = pickle.loads(call)
    value = func(*args, **kwargs)
    (folder / os.environ["PYCOLLECTIVE_RANK"]).write_bytes(pickler().dumps(value))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
