"""The engine by itself, and pycollective.torch on top of it."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..peers import Array, PeerUnavailable
from ..peers.tensors import as_tensor, import_torch
from ..workload.plan import OURS
from .contender import Contender, Summing, Unchecked

__all__ = ["Ours"]


class Ours:
    """One engine, and Horovod's interface on first use; shared by all contenders.  Collective."""

    def __init__(self) -> None:
        package = importlib.import_module("pycollective")
        module: Any = importlib.import_module("pycollective.engine")
        self._comm: Any = package.init()
        self._module, self._engine = module, module.Engine(self._comm)
        self._horovod: Any = None
        self.version = f"pycollective {package.__version__}"

    def window(self, count: int) -> Array:
        """A flat float32 array in a window of the engine's communicator, where it is reduced without a copy."""
        array: Array = self._engine.comm.empty((count,), np.float32)
        array[:] = 0
        return array

    def horovod(self) -> Any:
        """pycollective.torch, initialized; PeerUnavailable if torch is missing."""
        if self._horovod is None:
            try:
                module: Any = importlib.import_module("pycollective.torch")
            except ImportError as error:
                raise PeerUnavailable(f"pycollective.torch: {error}") from error
            module.init()
            self._horovod = module
        return self._horovod

    def blocking(self, array: Array) -> Contender:
        """The communicator's allreduce, without an engine: what the layers above are compared with."""
        call = self._comm.allreduce
        return Summing(OURS, [array], lambda: call(array, array))

    def on_tensor(self, array: Array) -> Contender:
        """Contender for a torch tensor in the array's memory; PeerUnavailable if torch is missing."""
        import_torch()
        call, tensor = self._comm.allreduce, as_tensor(array)
        return Summing(OURS, [array], lambda: call(tensor, tensor))

    def barrier(self) -> Contender:
        """The communicator's barrier."""
        return Unchecked(OURS, self._comm.barrier)

    def nonblocking(self, array: Array) -> Contender:
        """The communicator's iallreduce, and wait."""
        start = self._comm.iallreduce
        return Summing(OURS, [array], lambda: start(array, array).wait())

    def engine_run(self, name: str, array: Array) -> Contender:
        """Engine.run of one array, into a new one."""
        item, run = self._module.Item, self._engine.run
        return Summing(OURS, [array], lambda: run([item("allreduce", name, array)]), in_place=False)

    def engine(self, name: str, arrays: Sequence[Array]) -> Contender:
        """All arrays as one group, in place."""
        items, submit = self._items(name, arrays), self._engine.submit

        def call() -> None:
            for work in submit(items):
                work.wait()

        return Summing(OURS, arrays, call)

    def one_by_one(self, name: str, arrays: Sequence[Array]) -> Contender:
        """Each array submitted separately, like gradients when backward finishes them; all awaited at the end."""
        items, submit = [[item] for item in self._items(name, arrays)], self._engine.submit

        def call() -> None:
            for works in [submit(each) for each in items]:
                works[0].wait()

        return Summing(OURS, arrays, call)

    def _items(self, name: str, arrays: Sequence[Array]) -> list[Any]:
        return [self._module.Item("allreduce", f"{name}.{i}", array, out=array) for i, array in enumerate(arrays)]

    def grouped(self, name: str, arrays: Sequence[Array], in_place: bool) -> Contender:
        """Horovod's grouped_allreduce: the form that returns new tensors, or the one that ends in ``_``."""
        hvd, tensors = self.horovod(), [as_tensor(array) for array in arrays]
        function = hvd.grouped_allreduce_ if in_place else hvd.grouped_allreduce
        return Summing(OURS, arrays, lambda: function(tensors, op=hvd.Sum, name=name), in_place)

    def single(self, name: str, array: Array, in_place: bool = True) -> Contender:
        """Horovod's allreduce_ of one tensor, or allreduce, which returns a new one."""
        hvd, tensor = self.horovod(), as_tensor(array)
        function = hvd.allreduce_ if in_place else hvd.allreduce
        return Summing(OURS, [array], lambda: [function(tensor, op=hvd.Sum, name=name)], in_place)

    def close(self) -> None:
        """Collective."""
        if self._horovod is not None:
            self._horovod.shutdown()
        self._engine.close()
