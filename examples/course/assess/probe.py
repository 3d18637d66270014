"""One rank of an assessment: runs a student's script and records what it does; run.py starts it, judge.py judges.

    python probe.py FOLDER SECONDS script.py [ARGUMENTS]

The script is not changed. In FOLDER each rank leaves RANK.json, with the fields of `Record`; RANK.out, the text that it
has printed; and RANK.stack, where it was after SECONDS.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import json
import os
import runpy
import sys
import traceback
from pathlib import Path
from typing import Any

from probe_record import finish_step, parameters, record
from probe_watch import Watcher, note_open


class Tee:
    """Standard output, also written to a file."""

    def __init__(self, screen: Any, file: Any) -> None:
        self._screen, self._file = screen, file

    def write(self, text: str) -> int:
        self._file.write(text)
        return int(self._screen.write(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._screen, name)


def exit_code(error: BaseException) -> int:
    """What Python would exit with: sys.exit(3), sys.exit("text"), sys.exit(), or another exception."""
    if not isinstance(error, SystemExit):
        return 1
    return error.code if isinstance(error.code, int) else int(error.code is not None)


def main() -> int:
    folder, seconds, script = Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
    names = ("PYCOLLECTIVE_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
    rank = next(os.environ[name] for name in names if name in os.environ)
    faulthandler.dump_traceback_later(seconds, file=open(folder / f"{rank}.stack", "w"))  # noqa: SIM115  kept open to the end
    printed = open(folder / f"{rank}.out", "w", buffering=1)  # noqa: SIM115
    sys.stdout = Tee(sys.stdout, printed)
    sys.meta_path.insert(0, Watcher())
    sys.addaudithook(note_open)
    sys.argv = sys.argv[3:]
    sys.path[0] = str(Path(script).parent)
    sys.path.append(str(Path(__file__).resolve().parents[1]))  # for `from data import load`
    import pycollective.horovod

    pycollective.horovod.install()  # `import horovod.torch` is pycollective.torch
    code = 0
    try:
        runpy.run_path(script, run_name="__main__")
    except BaseException as error:
        code = exit_code(error)
        if code:
            lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == script]
            record.error = f"line {lines[-1] if lines else '?'}: {type(error).__name__}: {error}"
            traceback.print_exc()
    finally:
        finish_step()
        record.parameters = [of() for of in parameters.values()]
        (folder / f"{rank}.json").write_text(json.dumps(dataclasses.asdict(record)))
        sys.stdout = sys.__stdout__
    return code


if __name__ == "__main__":
    sys.exit(main())
