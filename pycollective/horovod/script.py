"""Runs a script or a module in this process, with `horovod` resolving to this package."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from pycollective import horovod


def check(words: Sequence[str]) -> None:
    """
    Args:
        words: a script, or -m and a module, with its arguments.

    Raises:
        ValueError: neither was given, or there is no such file.
    """
    by_name = list(words[:1]) == ["-m"]
    if len(words) <= by_name or words[by_name].startswith("-"):
        raise ValueError("a script, or -m and a module, is missing")
    if not by_name and not Path(words[0]).is_file():
        raise ValueError(f"there is no file {words[0]}")


def run(words: Sequence[str]) -> None:
    """Run it as __main__, with its arguments in sys.argv. `words`: see `check`."""
    by_name = words[0] == "-m"
    sys.argv = list(words[by_name:])
    if not getattr(sys.flags, "safe_path", False):  # python -P, since 3.11
        sys.path[0] = str(Path.cwd() if by_name else Path(words[0]).resolve().parent)
    horovod.install()
    if by_name:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")
