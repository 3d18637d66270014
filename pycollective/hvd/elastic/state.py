"""What training consists of: values that are committed, restored and made equal, whatever the framework."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO

import numpy as np

from pycollective.hvd import handles
from pycollective.hvd.arguments import Max
from pycollective.hvd.basics import rank
from pycollective.hvd.elastic import commit_file
from pycollective.hvd.exceptions import HostsUpdatedInterrupt
from pycollective.hvd.objects import broadcast_object
from pycollective.hvd.operations import reduction
from pycollective.hvd.process_sets import global_process_set

REMOVED, ADDED = 1, 2
"""What happened to hosts; bits."""


class State:
    """What `elastic.run` keeps equal on all ranks. Subclasses say how: save, restore, sync and perhaps reset."""

    def __init__(self, bcast_object: Callable[..., Any] = broadcast_object, get_rank: Callable[[], int] = rank) -> None:
        """Args: bcast_object: gives the object of rank 0 to all; get_rank: this rank."""
        self._bcast_object, self._rank = bcast_object, get_rank
        self._reset_callbacks: list[Callable[[], Any]] = []
        self._told: list[tuple[float, int]] = []
        self._newest = 0.0

    def register_reset_callbacks(self, callbacks: Sequence[Callable[[], Any]]) -> None:
        """Functions to call whenever the ranks have changed, before the state is synchronised: to scale the step size
        with size(), say."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Called by `elastic.run` when the ranks have started anew."""
        self._told.clear()
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Tell this rank that hosts were removed (1) or added (2), or both (3), at a time in seconds.

        At their next commit all ranks raise HostsUpdatedInterrupt. May be called from any thread.
        """
        self._told.append((float(timestamp), int(update_res)))

    def commit(self) -> None:
        """Collective: what the state is now is what a restore goes back to; then check_host_updates().

        Where PYCOLLECTIVE_ELASTIC_FILE names a file, rank 0 leaves it there, too, for a job that is started anew.
        """
        self.save()
        commit_file.keep(self)
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Collective: raises HostsUpdatedInterrupt on all ranks if one was told since the last check."""
        told, self._told = self._told, []
        news = [(when, what) for when, what in told if when > self._newest]
        happened = [max([when for when, _ in news], default=0.0)]
        happened += [float(any(what & bit for _, what in news)) for bit in (REMOVED, ADDED)]
        found = np.array(happened)
        label = handles.unnamed("allreduce", global_process_set)
        handles.run([reduction(found, found, label, Max, 1.0, 1.0)], global_process_set)
        newest, removed, added = found.tolist()
        if newest > self._newest:
            self._newest = newest
            raise HostsUpdatedInterrupt(skip_sync=bool(removed and not added))

    def save(self) -> None:
        """Keep a copy."""
        raise NotImplementedError

    def restore(self) -> None:
        """Go back to the copy. Not collective."""
        raise NotImplementedError

    def sync(self) -> None:
        """Collective: everything as on rank 0; this is also what a restore goes back to."""
        raise NotImplementedError

    def reset(self) -> None:
        """Called when the ranks have changed, before the reset callbacks."""

    def kept(self) -> Any:
        """The copy, as something that `write` takes; None: it cannot be kept in a file."""

    def take_kept(self, content: Any) -> None:
        """Make what `kept` gave the copy, and go back to it."""
        raise NotImplementedError

    def write(self, content: Any, file: BinaryIO) -> None:
        """Store what `kept` gave, or a dictionary with it, in a file."""
        pickle.dump(content, file)

    def read(self, file: BinaryIO) -> Any:
        """What `write` stored. Executes what a pickle asks for: only for files that nobody else may write."""
        return pickle.load(file)


class ObjectState(State):
    """A state of plain values, each an attribute. They are copied deeply, and sent by way of pickle."""

    def __init__(
        self, bcast_object: Callable[..., Any] = broadcast_object, get_rank: Callable[[], int] = rank, **kwargs: Any
    ) -> None:
        super().__init__(bcast_object, get_rank)
        self._saved_state = copy.deepcopy(kwargs)
        for name, value in kwargs.items():
            setattr(self, name, value)

    def save(self) -> None:
        self._saved_state = {name: copy.deepcopy(getattr(self, name)) for name in self._saved_state}

    def restore(self) -> None:
        for name, value in self._saved_state.items():
            setattr(self, name, copy.deepcopy(value))

    def kept(self) -> Any:
        return {"values": self._saved_state}

    def take_kept(self, content: Any) -> None:
        require_names("values", self._saved_state, content)
        self._saved_state = content["values"]
        self.restore()

    def sync(self) -> None:
        if self._saved_state:
            now = {name: getattr(self, name) for name in self._saved_state}
            for name, value in self._bcast_object(now).items():
                setattr(self, name, value)
        ObjectState.save(self)


def require_names(what: str, mine: dict[str, Any], content: dict[str, Any]) -> None:
    """
    Raises:
        ValueError: what a commit's file has under a heading are other names than the state's.
    """
    if set(mine) != set(content.get(what, {})):
        raise ValueError(f"the file has {what} {sorted(content.get(what, {}))}, the state {sorted(mine)}")
