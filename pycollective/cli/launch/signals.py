"""The signals that a launcher passes on to its ranks."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""They end the job: see Job.request_end."""
_OWN = (
    *("KILL", "STOP", "CHLD", "PIPE", "TTIN", "TTOU", "XCPU", "XFSZ"),
    *("SEGV", "FPE", "ILL", "BUS", "ABRT", "TRAP", "SYS", "STKFLT"),
)
"""They cannot be caught, or are about the process that gets them."""


def passed_on() -> list[int]:
    """The signals that only the ranks act upon, such as USR1, QUIT, WINCH and the real-time ones; and TSTP, CONT."""
    own = {getattr(signal, f"SIG{name}", 0) for name in _OWN}
    return sorted(int(number) for number in signal.valid_signals() - own - {*ENDING})


@contextlib.contextmanager
def handled_by(end: Callable[[int], object], pass_on: Callable[[int], object] | None = None) -> Iterator[None]:
    """Meanwhile signals of this process call these functions; only the main thread of a process can have that.

    Args:
        end: called for ENDING; those that are ignored, as by nohup, remain so.
        pass_on: called for the signals `passed_on`, but for those that this process handles itself. After SIGTSTP it
            stops, as a program at a terminal does.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int) -> None:
        assert pass_on is not None
        pass_on(number)
        os.kill(os.getpid(), signal.SIGSTOP)

    taken = {int(number): end for number in ENDING if signal.getsignal(number) != signal.SIG_IGN}
    if pass_on is not None:
        taken |= {number: pass_on for number in passed_on() if signal.getsignal(number) == signal.SIG_DFL}
        if signal.SIGTSTP in taken:
            taken[signal.SIGTSTP] = stop
    before = {number: signal.signal(number, lambda got, _: taken[got](got)) for number in taken}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
