"""Files that are read again by a later run: written for this user alone, and read only if nobody else can have."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


def open_private(path: Path) -> BinaryIO | None:
    """A file of this user, for reading; None if there is none.

    Raises:
        PermissionError: it is not a regular file, belongs to another user, or others may write to it.
    """
    try:
        # A symbolic link is not followed, and a FIFO not waited for.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        if path.is_symlink():
            raise PermissionError(f"{path} is not read: it is a symbolic link; name the file itself") from error
        raise
    wrong = _why_not_private(os.fstat(descriptor))
    if wrong:
        os.close(descriptor)
        raise PermissionError(f"{path} is not read: {wrong}")
    return os.fdopen(descriptor, "rb")


def _why_not_private(found: os.stat_result) -> str:
    if not stat.S_ISREG(found.st_mode):
        return "it is not a regular file"
    if found.st_uid != os.geteuid():
        return f"it belongs to the user with uid {found.st_uid}, not to this one ({os.geteuid()})"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"its mode {stat.S_IMODE(found.st_mode):o} lets others write to it; chmod go-w makes it readable here"
    return ""


def require_replaceable(path: Path) -> None:
    """Refuse to put a file in place of a device, a FIFO or a folder: as root it would succeed on /dev/null.

    Raises:
        PermissionError: there is one of that name.
    """
    with contextlib.suppress(FileNotFoundError):
        mode = os.lstat(path).st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISLNK(mode):
            raise PermissionError(f"{path} is not replaced: it is not a regular file")


def write_private(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Replace a file at once, with mode 0600: a reader finds all of the new content or all of the old.

    Args:
        path: of the file. A file named like it with `.new` behind is made first.
        write: is given that file to write to.

    Raises:
        PermissionError: there is a device, a FIFO or a folder of that name.
    """
    require_replaceable(path)
    unfinished = path.with_name(f"{path.name}.new")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(unfinished)  # of a run that was killed here, or a stranger's
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(unfinished, flags, 0o600), "wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(unfinished, path)
