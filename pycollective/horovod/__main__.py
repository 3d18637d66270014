"""`python -m pycollective.horovod SCRIPT [ARGUMENT...]`: run an unchanged Horovod script.

`-m MODULE` instead of SCRIPT runs a module, like Python's own -m.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from pycollective import horovod

USAGE = "usage: python -m pycollective.horovod SCRIPT [ARGUMENT...], or -m MODULE [ARGUMENT...]"


def main() -> None:
    words = sys.argv[1:]
    by_name = words[:1] == ["-m"]
    words = words[by_name:]
    if not words or words[0].startswith("-"):
        sys.exit(USAGE)
    if not by_name and not Path(words[0]).is_file():
        sys.exit(f"{USAGE}\nthere is no file {words[0]}")
    sys.argv = words
    if not getattr(sys.flags, "safe_path", False):  # python -P, since 3.11
        sys.path[0] = str(Path.cwd() if by_name else Path(words[0]).resolve().parent)
    horovod.install()
    if by_name:
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main()
