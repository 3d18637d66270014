"""The state of a training: values that are committed, restored and synchronized, for all frameworks.

Commits may outlive the job: PYCOLLECTIVE_ELASTIC_FILE names a file, from which a restarted job continues, with the same
or another number of ranks. Rank 0 writes it at each commit and reads it before the first sync, so it must be where rank
0 finds it again. Reading unpickles it, which can execute code: so it is read only if it is a regular file of this user
to which no other user may write, and it is written with mode 0600.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from pycollective import settings
from pycollective.comm.private_file import open_private, write_private
from pycollective.hvd import handles
from pycollective.hvd.arguments import Max
from pycollective.hvd.basics import rank, size
from pycollective.hvd.exceptions import HostsUpdatedInterrupt
from pycollective.hvd.objects import broadcast_object
from pycollective.hvd.operations import reduction
from pycollective.hvd.process_sets import global_process_set

REMOVED, ADDED = 1, 2
"""Changes of the set of hosts; bits."""
_resumed = False


class State:
    """A state that `elastic.run` keeps equal on all ranks. Subclasses implement save, restore, sync and maybe reset."""

    def __init__(self, bcast_object: Callable[..., Any] = broadcast_object, get_rank: Callable[[], int] = rank) -> None:
        """Args: bcast_object: broadcasts the object of rank 0; get_rank: returns this rank."""
        self._bcast_object, self._rank = bcast_object, get_rank
        self._reset_callbacks: list[Callable[[], Any]] = []
        self._updates: list[tuple[float, int]] = []
        self._newest = 0.0

    def register_reset_callbacks(self, callbacks: Sequence[Callable[[], Any]]) -> None:
        """Register functions to call whenever the ranks have changed, before the state is synchronized, e.g. to scale
        the step size with size()."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Called by `elastic.run` after the ranks have been reset."""
        self._updates.clear()
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Notify this rank that hosts were removed (1) or added (2), or both (3), at a time in seconds.

        At their next commit all ranks raise HostsUpdatedInterrupt. May be called from any thread.
        """
        self._updates.append((float(timestamp), int(update_res)))

    def commit(self) -> None:
        """Collective: save the current state as the one that a restore returns to; then check_host_updates().

        If PYCOLLECTIVE_ELASTIC_FILE names a file, rank 0 also writes it there, for a job that is restarted.
        """
        self.save()
        _keep(self.kept(), self.write)
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Collective: raise HostsUpdatedInterrupt on all ranks if any rank was notified since the last check."""
        updates, self._updates = self._updates, []
        news = [(when, what) for when, what in updates if when > self._newest]
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
        """Save a copy."""
        raise NotImplementedError

    def restore(self) -> None:
        """Restore the saved copy. Not collective."""
        raise NotImplementedError

    def sync(self) -> None:
        """Collective: load rank 0's state everywhere, and save it."""
        raise NotImplementedError

    def reset(self) -> None:
        """Called when the ranks have changed, before the reset callbacks."""

    def kept(self) -> Any:
        """The saved copy, in a form that `write` takes; None: it cannot be stored in a file."""

    def take_kept(self, content: Any) -> None:
        """Replace the saved copy by a result of `kept`, and restore it."""
        raise NotImplementedError

    def write(self, content: Any, file: BinaryIO) -> None:
        """Write the result of `kept`, or a dictionary containing it, to a file."""
        pickle.dump(content, file)

    def read(self, file: BinaryIO) -> Any:
        """Read what `write` stored. Unpickling can execute code: only for files that no other user may write."""
        return pickle.load(file)


class ObjectState(State):
    """A state of plain values, each an attribute. They are deep-copied, and sent through pickle."""

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
        ValueError: the names under a heading of a commit's file differ from the state's.
    """
    if set(mine) != set(content.get(what, {})):
        raise ValueError(f"the file has {what} {sorted(content.get(what, {}))}, the state {sorted(mine)}")


def _keep(content: Any, write: Callable[[Any, BinaryIO], None]) -> None:
    """Called after a commit: store it in the file, if configured. A reader finds this commit or the previous one.

    Args:
        content, write: of the state: see State.kept and State.write.
    """
    path = _path()
    if path is None or content is None or rank() != 0:
        return
    write_private(path, lambda file: write({"ranks": size(), "state": content}, file))


def resume_from_file(read: Callable[[BinaryIO], Any], take: Callable[[Any], None]) -> bool:
    """Collective, called before a sync: load rank 0's state from the file, if there is one.

    Does nothing after rank 0's first sync: from then on the file has this job's own commits.

    Args:
        read, take: of the state: see State.read and State.take_kept.

    Returns:
        whether the file was written by another number of ranks, so that the reset callbacks must be called.

    Raises:
        ValueError: the file does not match the state. PermissionError: other users may have written it; see
            open_private. Any error that `read` raises.
    """
    path = _path()
    ranks: int | None = None
    file = open_private(path) if rank() == 0 and not _resumed and path is not None else None
    if file is not None:
        with file:
            found: dict[str, Any] = read(file)
        ranks = found["ranks"]
        take(found["state"])
    ranks = broadcast_object(ranks)
    return ranks is not None and ranks != size()


def mark_resumed() -> None:
    """Called after a sync: this rank has loaded the file's content."""
    global _resumed
    _resumed = True


def _path() -> Path | None:
    name = settings.read("PYCOLLECTIVE_ELASTIC_FILE")
    return Path(name) if name else None
