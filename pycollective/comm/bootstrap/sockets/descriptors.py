"""The limit of open files: a rank needs descriptors for its peers, and a shell's limit is often 1024."""

from __future__ import annotations

import contextlib
import errno
import resource

from pycollective.errors import BootstrapError

_ENOUGH = 1 << 16
"""Programs that a rank starts inherit the limit, and some close every descriptor below it: it is not made larger."""


def raise_limit() -> None:
    """Raise this process's soft limit of open files towards the hard one, which needs no privilege."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # some systems state a limit that they do not grant
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def are_used_up(error: OSError) -> bool:
    """Return whether the limit of this process, or of the system, is the cause."""
    return error.errno in (errno.EMFILE, errno.ENFILE)


def refusal(who: str, need: str, error: OSError) -> BootstrapError:
    """The error of a rank that has no descriptor left.

    Args:
        who: `rank 3` or the like. need: what it needs descriptors for.
    """
    if error.errno == errno.ENFILE:
        return BootstrapError(f"{who}: all processes of its host together have too many open files; {need}")
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return BootstrapError(f"{who}: too many open files: its process may open {limit} (`ulimit -n`), all in use; {need}")
