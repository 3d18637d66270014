"""A rank's place in its job, which one process takes: not a child that has inherited the launcher's variables.

The rank is the program that the launcher has started, or what replaced it by exec. It may run under other programs: a
shell, numactl, a profiler, or a Python program that waits for it, as `accelerate launch` does. A place is an abstract
UNIX socket, which the kernel removes with its process; who connects learns the process's id from it (SO_PEERCRED).
"""

from __future__ import annotations

import binascii
import contextlib
import os
import socket
import struct
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from pycollective.errors import BootstrapError

_WAITS_FOR_CHILD = ("do_wait", "wait4", "waitid")
"""Parts of the names of the kernel's functions in which a process sleeps (/proc/PID/wchan)."""
_LOOKS, _PAUSE = 10, 0.002  # seconds between looks; a process that runs seems to wait at some of them
_SHOWN = 50  # characters of the job's name in that of a socket, which has at most 107
_held: dict[str, tuple[int, socket.socket]] = {}
"""By name: the places that this process has, or had inherited: with the id of the process that took them."""


def take(job: str, place: str, variables: Mapping[str, str]) -> None:
    """Take a place for this process, until `release`. It may be taken again by this process.

    Args:
        job: what identifies it on this host; the same in all processes that have inherited the variables.
        place: `rank 3` or the like.
        variables: by which the launcher has made this process a rank.

    Raises:
        BootstrapError: another process has it, or this one is a child of the rank; names both.
    """
    if os.path.isdir("/proc/self") and (parent := _rank_above(variables)):
        raise _refusal(place, f"process {parent}", variables)
    name = f"\0pycollective/place/{binascii.crc32(job.encode()):08x}{job[-_SHOWN:]}/{place}"
    if name in _held and _held[name][0] == os.getpid():
        return
    taken = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        taken.bind(name)
        taken.listen()
    except OSError:
        taken.close()
        if holder := _holder(name):
            raise _refusal(place, holder, variables) from None
        return  # it has just ended, or is another user's, which can only prevent that others are refused
    _held[name] = os.getpid(), taken


def release() -> None:
    """Leave the places of this process: its children may take them."""
    for name, (process, taken) in [*_held.items()]:
        if process == os.getpid():
            taken.close()
            del _held[name]


def _refusal(place: str, holder: str, variables: Mapping[str, str]) -> BootstrapError:
    return BootstrapError(
        f"process {os.getpid()} cannot be {place}, which {holder} is: it has inherited the launcher's "
        f"variables; start it without them (`env -u {' -u '.join(variables)}`), or let {holder} be replaced by "
        "it (`exec`)"
    )


def _holder(name: str) -> str:
    """The process of this user that has a place; empty: none."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        caller.setblocking(False)
        try:
            caller.connect(name)
            credentials = caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        except BlockingIOError:  # of the many that were refused before, none is accepted
            return "another process"
        except OSError:
            return ""
    process, user, _ = struct.unpack("3i", credentials)
    return f"process {process}" if user == os.geteuid() and os.path.exists(f"/proc/{process}") else ""


def _rank_above(variables: Mapping[str, str]) -> int:
    """The process above this one that is the rank, which has the same variables and runs the same Python; 0: none."""
    process = os.getppid()
    while process > 1 and _has(process, variables):
        if _is_this_python(process) and not _is_wrapper(process):
            return process
        process = _parent(process)
    return 0


def _has(process: int, variables: Mapping[str, str]) -> bool:
    try:
        environment = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    except OSError:  # another user's, or it has ended
        return False
    return all(os.fsencode(f"{name}={value}") in environment for name, value in variables.items())


def _is_this_python(process: int) -> bool:
    with contextlib.suppress(OSError):
        return os.path.samefile(f"/proc/{process}/exe", "/proc/self/exe")
    return False


def _is_wrapper(process: int) -> bool:
    """Return whether it only waits for the program that it has started, so far as the kernel tells."""
    for _ in range(_LOOKS):
        if not _waits(process):
            return False
        time.sleep(_PAUSE)
    return True


def _waits(process: int) -> bool:
    with contextlib.suppress(OSError):
        where = Path(f"/proc/{process}/wchan").read_text()
        if any(name in where for name in _WAITS_FOR_CHILD):
            return True
        if where not in ("", "0"):  # a wrapper may pass on what its program writes
            known = sys.modules.get("multiprocessing.process")
            return "poll" in where and (known is None or known.parent_process() is None)
    return _stat(process)[:1] != ["R"]  # the kernel does not tell where it waits, or it runs


def _stat(process: int) -> list[str]:
    """The fields of /proc/PID/stat from the third on; empty if it has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return []


def _parent(process: int) -> int:
    return int(next(iter(_stat(process)[1:2]), 0))
