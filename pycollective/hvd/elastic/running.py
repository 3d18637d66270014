"""The loop around a training function: after a loss it returns to the last commit and continues without lost ranks."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from pycollective import settings
from pycollective.comm import world
from pycollective.comm.bootstrap import elastic
from pycollective.comm.bootstrap.elastic_messages import Ask
from pycollective.errors import Error, PeerLostError
from pycollective.hvd import basics, handles
from pycollective.hvd.elastic.state import State, mark_resumed, resume_from_file
from pycollective.hvd.exceptions import HorovodInternalError, HostsUpdatedInterrupt


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator of a training function whose first argument is a State (a TorchState).

    If PYCOLLECTIVE_ELASTIC_FILE names a file with the commits of an earlier job, the state is loaded from it. Then
    `state.sync()` makes the state equal on all ranks, and the function runs. If it raises

    * HorovodInternalError (a rank was lost), the state is restored to the last `state.commit()`;
    * HostsUpdatedInterrupt, the state is kept;

    then the surviving ranks start again among themselves, or, in a job with an elastic driver, with the workers that
    this has started for lost ranks and on new hosts (ranks and size() may change). The state's reset callbacks are
    called, and the function runs again. Other exceptions propagate. All collective operations belong in
    the function or after it; only `init()` may be called before it.

    Raises:
        RuntimeError: the remaining ranks do not connect within HOROVOD_ELASTIC_TIMEOUT, or the driver ends the job.
        SystemExit: the driver needs this worker no longer, because its host was removed; the exit code is 0.
    """
    return run_fn(func, reset)


def run_graphs(
    func: Callable[..., Any], internal_error: Callable[[Exception], HorovodInternalError | None]
) -> Callable[..., Any]:
    """Like `run`, where compiled programs report the loss of a rank in errors of the framework's own classes.

    Args:
        internal_error: what such an error was caused by; None: by something else.
    """

    @functools.wraps(func)
    def wrapper(state: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return func(state, *args, **kwargs)
        except Exception as error:
            lost = internal_error(error)
            if lost is None:
                raise
            raise lost from error

    return run_fn(wrapper, reset)


def run_fn(func: Callable[..., Any], reset: Callable[[], None]) -> Callable[..., Any]:
    """Like `run`, with another reset function."""

    @functools.wraps(func)
    def wrapper(state: Any, *args: Any, **kwargs: Any) -> Any:
        skip_sync, synced = False, False
        while True:
            try:
                if not skip_sync:
                    if isinstance(state, State) and resume_from_file(state.read, state.take_kept):
                        state.on_reset()
                    state.sync()
                    mark_resumed()
                    synced = True
                with _notified(state):
                    return func(state, *args, **kwargs)
            except HorovodInternalError as error:
                state.restore()
                skip_sync, lost = False, getattr(error.__cause__, "rank", -1)
            except HostsUpdatedInterrupt as interrupt:
                skip_sync, lost = interrupt.skip_sync, -1
            driver = elastic.connection()
            if driver is not None:
                driver.ask = Ask(synced, not skip_sync, lost)
            reset()
            state.on_reset()
            generation = elastic.newest()
            skip_sync = skip_sync and (generation is None or not generation.sync)

    return wrapper


@contextlib.contextmanager
def _notified(state: Any) -> Iterator[None]:
    """The driver's updates of the hosts go to this state meanwhile."""
    driver = elastic.connection()
    if driver is not None and hasattr(state, "on_hosts_updated"):
        driver.listen(state.on_hosts_updated)
    try:
        yield
    finally:
        if driver is not None:
            driver.listen(None)


def reset() -> None:
    """Collective over the surviving ranks: shutdown(), then init() among them, in their old order, or in a job with an
    elastic driver among the workers of its next generation.

    Afterwards only the global process set exists.

    Raises:
        ValueError: HOROVOD_ELASTIC_TIMEOUT is not a positive number. RuntimeError: see `run`.
    """
    if elastic.connection() is not None:
        dynamic = basics.is_initialized() and basics.world().dynamic
        handles.shutdown()
        world.shutdown()
        basics.init(None, "dynamic" if dynamic else None)
        return
    if not basics.is_initialized():
        basics.init()
        return
    seconds = min(float(settings.read("HOROVOD_ELASTIC_TIMEOUT")), 1e6)  # the limit of clocks
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
