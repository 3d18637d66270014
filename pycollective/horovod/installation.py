"""`python -m pycollective.horovod install`: `import horovod` finds this package in every program of an environment.

It adds a file of one line to the environment's site-packages; `uninstall` removes it.
"""

from __future__ import annotations

import importlib.metadata
import site
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from pycollective import horovod

FILE = "pycollective-horovod.pth"


def install(folder: Path | None = None) -> Path:
    """Make `import horovod` find this package in programs of this environment; returns the file that does it.

    Args:
        folder: a site-packages folder; by default the environment's, or the user's if that cannot be written.

    Raises:
        RuntimeError: Horovod is installed, or no folder can be written.
    """
    try:
        theirs = importlib.metadata.version("horovod")
    except importlib.metadata.PackageNotFoundError:
        pass
    else:
        raise RuntimeError(f"Horovod {theirs} is installed here: `pip uninstall horovod` first")
    problems = []
    for place in _folders() if folder is None else [folder]:
        try:
            place.mkdir(parents=True, exist_ok=True)
            (place / FILE).write_text(f"{horovod.PATH}\n", encoding="utf-8")
        except OSError as error:
            problems.append(f"{error.filename}: {error.strerror}")
        else:
            return place / FILE
    raise RuntimeError(f"no site-packages folder of this Python can be written: {'; '.join(problems)}")


def uninstall() -> list[Path]:
    """Undo `install`; returns the files that were removed.

    Raises:
        OSError: one cannot be removed.
    """
    found = [place / FILE for place in _folders() if (place / FILE).exists()]
    for file in found:
        file.unlink()
    return found


def _folders() -> Iterator[Path]:
    """Where Python looks for .pth files: of the environment and, if it is in use, of the user."""
    yield Path(sysconfig.get_path("purelib"))
    if site.ENABLE_USER_SITE:
        yield Path(site.getusersitepackages())
