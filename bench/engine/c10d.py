"""torch.distributed's calls on a process group: this package's, Gloo's, or one that does nothing."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np

from ..peers import Array
from ..peers.gloo import GlooPeer
from ..ranks.world import World
from ..workload.plan import OURS
from .contender import Contender, Summing, Unchecked
from .shapes import Shape
from .tensors import fill

__all__ = ["C10d"]


class C10d:
    """Process groups next to Gloo's default one; collective.

    Args:
        peer: has created the default process group.
        world: the ranks.
    """

    def __init__(self, peer: GlooPeer, rank: int) -> None:
        self._peer, self._rank = peer, rank
        self._torch: Any = importlib.import_module("torch")
        self._dist: Any = importlib.import_module("torch.distributed")

    @cached_property
    def ours(self) -> Any:
        """A process group of this package; collective."""
        importlib.import_module("pycollective.torch")
        return self._dist.new_group(backend="pycollective")

    @cached_property
    def idle(self) -> Any:
        """A process group written in Python whose calls do nothing: what torch itself adds to a call."""
        dist = self._dist
        work = _idle_work(dist)

        class Idle(dist.ProcessGroup):  # type: ignore[misc, name-defined]
            def allreduce(self, tensors: Any, opts: Any = None) -> Any:
                return work

            def getBackendName(self) -> str:
                return "idle"

        if "idle" not in dist.Backend.backend_list:
            dist.Backend.register_backend("idle", lambda store, rank, size, timeout: Idle(rank, size), devices=["cpu"])
        return dist.new_group(backend="idle")

    def all_reduce(self, name: str, array: Array, group: Any, later: bool, sums: bool = True) -> Contender:
        """dist.all_reduce of one tensor; `later`: asynchronous, and wait."""
        call, tensor = self._dist.all_reduce, self._torch.from_numpy(array)
        library = self._peer.name if group is None else OURS

        def at_once() -> Any:
            call(tensor, group=group)
            return (array,)

        def and_wait() -> Any:
            call(tensor, group=group, async_op=True).wait()
            return (array,)

        function = and_wait if later else at_once
        return Summing(name, library, [array], function) if sums else Unchecked(name, "torch", function)

    def there_and_back(self, name: str, shape: Shape, group: Any) -> Contender:
        """A message of float32 from rank 0 to rank 1, and one back; the other ranks do nothing."""
        send, recv, rank = self._dist.send, self._dist.recv, self._rank
        array = np.zeros(shape, np.float32)
        tensor = self._torch.from_numpy(array)

        def call() -> None:
            if rank == 0:
                send(tensor, 1, group=group)
                recv(tensor, 1, group=group)
            elif rank == 1:
                recv(tensor, 0, group=group)
                send(tensor, 0, group=group)

        return _Messages(name, self._peer.name if group is None else OURS, call, array)


def _idle_work(dist: Any) -> Any:
    class IdleWork(dist.Work):  # type: ignore[misc]
        def wait(self, timeout: Any = None) -> bool:
            return True

    return IdleWork()


class _Messages(Contender):
    """Both ranks end with rank 0's array."""

    def __init__(self, name: str, library: str, call: Callable[[], None], array: Array) -> None:
        super().__init__(name, library, call)
        self._array = array

    def check(self, world: World) -> int:
        if world.rank > 1:
            return 0
        fill([self._array], world.rank)
        self.call()
        expected = np.empty_like(self._array)
        fill([expected], 0)
        return int(np.count_nonzero(self._array != expected))
