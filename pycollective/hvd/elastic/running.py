"""The loop around a training function: after a loss it goes back to the last commit, and on with who is left."""

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

    Where PYCOLLECTIVE_ELASTIC_FILE names a file with the commits of a job before this one, the state is taken from it.
    Then the state is made equal on all ranks by `state.sync()`, then the function runs. Where it raises

    * HorovodInternalError (a rank is gone), the state goes back to the last `state.commit()`;
    * HostsUpdatedInterrupt, it stays as it is;

    then the ranks that still live start anew among themselves (their ranks and size() may differ from before), the
    state's reset callbacks are called, and the function runs again. Other exceptions pass through. All that ranks do
    together belongs into the function or after it; before it, a rank's `init()` alone.

    Raises:
        RuntimeError: the ranks that are left do not find each other within HOROVOD_ELASTIC_TIMEOUT, or, on several
            hosts, MPI does not go on after a loss.
    """
    return run_fn(func, reset)


def run_fn(func: Callable[..., Any], reset: Callable[[], None]) -> Callable[..., Any]:
    """As `run`, with another way of starting anew."""

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
    """Collective over the ranks that still live: shutdown(), then init() among them, in their old order.

    Process sets are gone after it, except the global one.

    Raises:
        ValueError: HOROVOD_ELASTIC_TIMEOUT is no positive number. RuntimeError: see `run`.
    """
    if not basics.is_initialized():
        basics.init()
        return
    seconds = timeout()
    old = basics.world()
    handles.shutdown()  # a rank that still waits for this one hears of it, and comes here too
    comm = old.comm
    while not basics.is_initialized():
        try:
            comm = comm.shrink(seconds)
        except Error as error:
            raise RuntimeError(f"elastic.run cannot go on with the ranks that are left: {error}") from error
        with contextlib.suppress(PeerLostError):  # another one is lost meanwhile
            basics.init(comm, "dynamic" if old.dynamic else None)
    basics.remember(comm)


def timeout() -> float:
    """HOROVOD_ELASTIC_TIMEOUT, in seconds.

    Raises:
        ValueError: it is not a positive number.
    """
    return min(float(settings.read("HOROVOD_ELASTIC_TIMEOUT")), 1e6)  # what clocks take
