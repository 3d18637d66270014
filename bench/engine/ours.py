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

    def blocking(self, name: str, array: Array) -> Contender:
        """The communicator's allreduce, without an engine: what the layers above are compared with."""
        call = self._comm.allreduce

        def function() -> Sequence[Array]:
            call(array, array)
            return (array,)

        return Summing(name, OURS, [array], function)

    def on_tensor(self, name: str, array: Array) -> Contender:
        """Contender for a torch tensor in the array's memory; PeerUnavailable if torch is missing."""
        import_torch()
        call, tensor = self._comm.allreduce, as_tensor(array)

        def function() -> Sequence[Array]:
            call(tensor, tensor)
            return (array,)

        return Summing(name, OURS, [array], function)

    def barrier(self, name: str) -> Contender:
        """The communicator's barrier."""
        return Unchecked(name, OURS, self._comm.barrier)

    def nonblocking(self, name: str, array: Array) -> Contender:
        """The communicator's iallreduce, and wait."""
        start = self._comm.iallreduce

        def function() -> Sequence[Array]:
            start(array, array).wait()
            return (array,)

        return Summing(name, OURS, [array], function)

    def engine_run(self, name: str, array: Array) -> Contender:
        """Engine.run of one array, into a new one."""
        item, run = self._module.Item, self._engine.run
        return Summing(name, OURS, [array], lambda: run([item("allreduce", name, array)]))

    def engine(self, name: str, arrays: Sequence[Array]) -> Contender:
        """All arrays as one group, in place."""
        item, submit = self._module.Item, self._engine.submit
        items = [item("allreduce", f"{name}.{i}", array, out=array) for i, array in enumerate(arrays)]

        def call() -> Sequence[Array]:
            for work in submit(items):
                work.wait()
            return arrays

        return Summing(name, OURS, arrays, call)

    def one_by_one(self, name: str, arrays: Sequence[Array]) -> Contender:
        """Each array submitted separately, like gradients when backward finishes them; all awaited at the end."""
        item, submit = self._module.Item, self._engine.submit
        items = [[item("allreduce", f"{name}.{i}", array, out=array)] for i, array in enumerate(arrays)]

        def call() -> Sequence[Array]:
            for works in [submit(each) for each in items]:
                works[0].wait()
            return arrays

        return Summing(name, OURS, arrays, call)

    def grouped(self, name: str, arrays: Sequence[Array], in_place: bool) -> Contender:
        """Horovod's grouped_allreduce: the form that returns new tensors, or the one that ends in ``_``."""
        hvd, torch = self.horovod(), importlib.import_module("torch")
        tensors = [torch.from_numpy(array) for array in arrays]
        function = hvd.grouped_allreduce_ if in_place else hvd.grouped_allreduce

        def call() -> Sequence[Any]:
            sums: Sequence[Any] = function(tensors, op=hvd.Sum, name=name)
            return sums

        return Summing(name, OURS, arrays, call)

    def single(self, name: str, array: Array, in_place: bool = True) -> Contender:
        """Horovod's allreduce_ of one tensor, or allreduce, which returns a new one."""
        hvd, torch = self.horovod(), importlib.import_module("torch")
        tensor, function = torch.from_numpy(array), hvd.allreduce_ if in_place else hvd.allreduce

        def call() -> Sequence[Any]:
            return (function(tensor, op=hvd.Sum, name=name),)

        return Summing(name, OURS, [array], call)

    def close(self) -> None:
        """Collective."""
        if self._horovod is not None:
            self._horovod.shutdown()
        self._engine.close()
