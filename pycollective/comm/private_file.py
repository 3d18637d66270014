"""Files in folders to which other users may write: created as new ones, and read only if they are this user's."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


def open_private(path: Path) -> BinaryIO | None:
    """Open a file of this user for reading; None if it does not exist.

    Raises:
        PermissionError: it is not a regular file, belongs to another user, or others may write to it.
    """
    try:
        # Does not follow a symbolic link or block on a FIFO.
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
    """PermissionError for the path of a device, a FIFO or a directory: root could replace /dev/null."""
    with contextlib.suppress(FileNotFoundError):
        mode = os.lstat(path).st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISLNK(mode):
            raise PermissionError(f"{path} is not replaced: it is not a regular file")


def create(path: Path, mode: int = 0o600) -> BinaryIO:
    """Create a file by a name that this package has chosen and another user may expect; what has the name is removed.

    Raises:
        OSError: it cannot be created; also if something else takes the name meanwhile.
    """
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)  # left by a run that was killed, or a link of another user's to a file of this one's
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, mode), "wb")


def write_private(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Replace a file atomically, with mode 0600: a reader sees either all of the new content or all of the old.

    `write` is called with a file that has `.new` appended to the name until it is complete.

    Raises:
        PermissionError: the path is a device, a FIFO or a directory.
    """
    require_replaceable(path)
    unfinished = path.with_name(f"{path.name}.new")
    with create(unfinished) as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(unfinished, path)
