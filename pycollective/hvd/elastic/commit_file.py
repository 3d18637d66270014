"""Commits that outlive the job: a restarted job, with the same or another number of ranks, continues from the last one.

PYCOLLECTIVE_ELASTIC_FILE names the file. Rank 0 writes it at each commit and reads it before the first sync, so it must
be where rank 0 finds it again. Reading unpickles it, which can execute code: so it is read only if it is a regular file
of this user to which no other user may write, and it is written with mode 0600.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from pycollective import settings
from pycollective.comm.private_file import open_private, write_private
from pycollective.hvd.basics import rank, size
from pycollective.hvd.objects import broadcast_object

_begun = False


def keep(content: Any, write: Callable[[Any, BinaryIO], None]) -> None:
    """Called after a commit: store it in the file, if configured. A reader finds this commit or the previous one.

    Args:
        content, write: of the state: see State.kept and State.write.
    """
    path = _path()
    if path is None or content is None or rank() != 0:
        return
    write_private(path, lambda file: write({"ranks": size(), "state": content}, file))


def resume(read: Callable[[BinaryIO], Any], take: Callable[[Any], None]) -> bool:
    """Collective, called before a sync: load rank 0's state from the file, if there is one.

    Does nothing after rank 0's first sync: from then on the file has this job's own commits.

    Args:
        read, take: of the state: see State.read and State.take_kept.

    Returns:
        whether the file was written by another number of ranks, so that the reset callbacks must be called.

    Raises:
        ValueError: the file does not match the state. PermissionError: other users may have written it; see
            open_private. Any error that `read` raises.
    """
    path = _path()
    ranks: int | None = None
    file = open_private(path) if rank() == 0 and not _begun and path is not None else None
    if file is not None:
        with file:
            found: dict[str, Any] = read(file)
        ranks = found["ranks"]
        take(found["state"])
    ranks = broadcast_object(ranks)
    return ranks is not None and ranks != size()


def begin() -> None:
    """Called after a sync: this rank has loaded the file's content."""
    global _begun
    _begun = True


def _path() -> Path | None:
    name = settings.read("PYCOLLECTIVE_ELASTIC_FILE")
    return Path(name) if name else None
