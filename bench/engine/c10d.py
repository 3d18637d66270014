"""torch.distributed's calls on a process group: this package's, Gloo's, or one that does nothing."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import numpy as np

from ..peers import Array, Call, round_trip
from ..peers.gloo import GlooPeer
from ..peers.tensors import as_tensor
from ..ranks.world import World
from ..workload.plan import OURS
from .contender import Contender, Summing, Unchecked
from .tensors import fill

__all__ = ["C10d"]


class C10d:
    """Process groups next to Gloo's default one; collective.

    Args:
        peer: has created the default process group.
    """

    def __init__(self, peer: GlooPeer, rank: int) -> None:
        self._peer, self._rank = peer, rank
        self._dist: Any = importlib.import_module("torch.distributed")

    @functools.cached_property
    def ours(self) -> Any:
        """A process group of this package; collective."""
        importlib.import_module("pycollective.torch")
        return self._dist.new_group(backend="pycollective")

    @functools.cached_property
    def idle(self) -> Any:
        """A process group written in Python whose calls do nothing: what torch itself adds to a call."""
        dist = self._dist

        class IdleWork(dist.Work):  # type: ignore[misc, name-defined]
            def wait(self, timeout: Any = None) -> bool:
                return True

        work = IdleWork()

        class Idle(dist.ProcessGroup):  # type: ignore[misc, name-defined]
            def allreduce(self, tensors: Any, opts: Any = None) -> Any:
                return work

            def getBackendName(self) -> str:
                return "idle"

        if "idle" not in dist.Backend.backend_list:
            dist.Backend.register_backend("idle", lambda store, rank, size, timeout: Idle(rank, size), devices=["cpu"])
        return dist.new_group(backend="idle")

    def all_reduce(self, array: Array, group: Any, later: bool, sums: bool = True) -> Contender:
        """dist.all_reduce of one tensor; `later`: asynchronous, and wait."""
        call, tensor = self._dist.all_reduce, as_tensor(array)

        def at_once() -> None:
            call(tensor, group=group)

        def and_wait() -> None:
            call(tensor, group=group, async_op=True).wait()

        function = and_wait if later else at_once
        return Summing(self._library(group), [array], function) if sums else Unchecked("torch", function)

    def there_and_back(self, array: Array, group: Any) -> Contender:
        """A message from the even rank of each pair to the odd one, and one back."""
        send, recv = (functools.partial(call, group=group) for call in (self._dist.send, self._dist.recv))
        tensor = as_tensor(array)
        call = round_trip(self._rank, self._dist.get_world_size(), send, tensor, recv, tensor)
        return _Messages(self._library(group), call, array)

    def _library(self, group: Any) -> str:
        return self._peer.name if group is None else OURS


class _Messages(Contender):
    """Both ranks of a pair end with the even rank's array."""

    def __init__(self, library: str, call: Call, array: Array) -> None:
        super().__init__(library, call)
        self._array = array

    def check(self, world: World) -> int:
        fill([self._array], world.rank)
        self.call()
        expected = np.empty_like(self._array)
        fill([expected], world.rank // 2 * 2)
        return int(np.count_nonzero(self._array != expected))
