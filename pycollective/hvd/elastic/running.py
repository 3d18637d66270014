"""The loop around a training function: after a loss it returns to the last commit and continues without lost ranks."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

from pycollective import settings
from pycollective.errors import Error, PeerLostError
from pycollective.hvd import basics, handles
from pycollective.hvd.elastic import commit_file
from pycollective.hvd.elastic.state import State
from pycollective.hvd.exceptions import HorovodInternalError, HostsUpdatedInterrupt


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator of a training function whose first argument is a State (a TorchState).

    If PYCOLLECTIVE_ELASTIC_FILE names a file with the commits of an earlier job, the state is loaded from it. Then
    `state.sync()` makes the state equal on all ranks, and the function runs. If it raises

    * HorovodInternalError (a rank was lost), the state is restored to the last `state.commit()`;
    * HostsUpdatedInterrupt, the state is kept;

    then the surviving ranks start again among themselves (their ranks and size() may change), the state's reset
    callbacks are called, and the function runs again. Other exceptions propagate. All collective operations belong in
    the function or after it; only `init()` may be called before it.

    Raises:
        RuntimeError: the remaining ranks do not connect within HOROVOD_ELASTIC_TIMEOUT, or, on several hosts, MPI does
            not continue after a loss.
    """
    return run_fn(func, reset)


def run_fn(func: Callable[..., Any], reset: Callable[[], None]) -> Callable[..., Any]:
    """Like `run`, with another reset function."""

    @functools.wraps(func)
    def wrapper(state: Any, *args: Any, **kwargs: Any) -> Any:
        skip_sync = False
        while True:
            try:
                if not skip_sync:
                    if isinstance(state, State):
                        commit_file.resume(state)
                    state.sync()
                    commit_file.begin()
                return func(state, *args, **kwargs)
            except HorovodInternalError:
                state.restore()
                skip_sync = False
            except HostsUpdatedInterrupt as interrupt:
                skip_sync = interrupt.skip_sync
            reset()
            state.on_reset()

    return wrapper


def reset() -> None:
    """Collective over the surviving ranks: shutdown(), then init() among them, in their old order.

    Afterwards only the global process set exists.

    Raises:
        ValueError: HOROVOD_ELASTIC_TIMEOUT is not a positive number. RuntimeError: see `run`.
    """
    if not basics.is_initialized():
        basics.init()
        return
    seconds = timeout()
    old = basics.world()
    handles.shutdown()  # a rank that is waiting for this one fails, and gets here too
    comm = old.comm
    while not basics.is_initialized():
        try:
            comm = comm.shrink(seconds)
        except Error as error:
            raise RuntimeError(f"elastic.run cannot continue with the remaining ranks: {error}") from error
        with contextlib.suppress(PeerLostError):  # another rank was lost meanwhile
            basics.init(comm, "dynamic" if old.dynamic else None)
    basics.remember(comm)


def timeout() -> float:
    """HOROVOD_ELASTIC_TIMEOUT, in seconds.

    Raises:
        ValueError: it is not a positive number.
    """
    return min(float(settings.read("HOROVOD_ELASTIC_TIMEOUT")), 1e6)  # the limit of clocks
