"""What a rank tells its peers and its launcher about the error that ends its program, and how it then leaves MPI.

The peers are given it when the rank's communicators are closed at exit. `pycollective run` reads it from a pipe.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import functools
import io
import os
import re
import stat
import sys
from collections.abc import Callable
from types import TracebackType

from pycollective import _core
from pycollective.errors import CommunicatorError, PeerLostError, TimeoutError

VARIABLE = "PYCOLLECTIVE_REPORT"
"""The launcher's pipe: its descriptor and inode, since in a child of the rank the number may be another file's."""
_MOST_BYTES = 500  # of a text: fewer than RankBlock::failure has
_OF_OTHERS = (PeerLostError, TimeoutError, CommunicatorError)
_NAMES = {kind.__name__ for kind in _OF_OTHERS}
_HIDDEN = re.compile(r"Cannot extract tensors from value: (\w+): (.*?)(\s+At:\s.*)?", re.DOTALL)
"""The text of the RuntimeError into which torch turns an error in the backward pass of DistributedDataParallel."""
_told = False
_FINALIZE_SECONDS = 5.0
"""Allowed for MPI_Finalize after a fault: it waits for ranks that may never come."""
_broken = False


def watch(rank: int) -> None:
    """Report from now on an exception that ends this process as that of this rank of the world."""
    previous, process = sys.excepthook, os.getpid()

    def report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        here = os.getpid() == process  # not in a child made by fork
        if here:
            note_fault()
            blamed = _blamed_by(error, rank)
            if blamed is None:
                _core.Team.note_failure(_text_of(error))
            _tell_launcher(blamed, _text_of(error))
            if hasattr(error, "add_note"):
                error.add_note(f"raised on rank {rank}")
        _in_one_piece(lambda: previous(kind, error, trace))
        if here and not hasattr(error, "add_note"):  # Python 3.10
            print(f"raised on rank {rank}", file=sys.stderr)

    sys.excepthook = report


def _in_one_piece(show: Callable[[], None]) -> None:
    """Write what `show` prints by one call: of ranks that fail at once, the lines of tracebacks would get mixed."""
    stream = sys.stderr
    if stream is None or stream.isatty():
        show()  # colours and width are those of a terminal
        return
    text = io.StringIO()
    try:
        with contextlib.redirect_stderr(text):
            show()
    finally:
        stream.write(text.getvalue())
        stream.flush()


def ends() -> None:
    """Tell the launcher at exit which rank was lost or late: the program may have caught that error."""
    blamed = _core.Team.blamed()
    if blamed >= 0 and not _told:
        _tell_launcher(blamed, "")


def _blamed_by(error: BaseException | None, rank: int) -> int | None:
    """The rank whose loss or silence led to the error; None: it is this rank's own."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, _OF_OTHERS) or (type(error) is RuntimeError and _hidden_in(error)[0] in _NAMES):
            blamed = _core.Team.blamed()
            if blamed < 0 and isinstance(error, _OF_OTHERS) and error.rank is not None:  # raised in Python
                blamed = error.rank
            return None if blamed in (-1, rank) else blamed
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return None


def _hidden_in(error: BaseException) -> tuple[str, str]:
    """Name and text of the error that torch has turned into this one; or of this one."""
    try:
        text = str(error)
    except Exception:
        return type(error).__name__, "(its text cannot be made)"
    found = _HIDDEN.fullmatch(text)
    return (found[1], found[2]) if found else (type(error).__name__, text)


def _text_of(error: BaseException) -> str:
    name, text = _hidden_in(error)
    text = " ".join(text.split())
    whole = f"{name}: {text}" if text else name
    return whole.encode(errors="replace")[:_MOST_BYTES].decode(errors="ignore")


def _tell_launcher(blamed: int | None, text: str) -> None:
    global _told
    number, _, inode = os.environ.get(VARIABLE, "").partition(":")
    with contextlib.suppress(ValueError, OSError):
        found = os.fstat(int(number))
        if stat.S_ISFIFO(found.st_mode) and found.st_ino == int(inode):
            import json

            os.write(int(number), json.dumps({"blamed": blamed, "text": text}).encode() + b"\n")
            _told = True


@functools.cache
def leave_mpi_at_exit() -> None:
    """Add an exit handler; it runs after those added later, which free the communicators."""
    atexit.register(_leave_mpi)


def note_fault() -> None:
    """A communicator between hosts was given up, or an error ends this process: others may not be in MPI_Finalize."""
    global _broken
    _broken = True


def _leave_mpi() -> None:
    mpi = sys.modules.get("mpi4py.MPI")
    if not _broken or mpi is None or not mpi.Is_initialized() or mpi.Is_finalized():
        return
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    with open(os.devnull, "w") as nowhere:
        faulthandler.dump_traceback_later(_FINALIZE_SECONDS, exit=True, file=nowhere)
        mpi.Finalize()
        faulthandler.cancel_dump_traceback_later()
