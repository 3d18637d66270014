"""DistributedOptimizer: any MXNet optimizer, on gradients that are reduced over all ranks before each update."""

from __future__ import annotations

from typing import Any

import mxnet as mx

from pycollective import checks
from pycollective.hvd.arguments import Average, split_evenly
from pycollective.hvd.gradients.gradient_group import GradientGroup, new_prefix
from pycollective.hvd.process_sets import ProcessSet, global_process_set
from pycollective.mxnet.arrays import writable
from pycollective.mxnet.calls import mxnet_errors

_OWN = {"_optimizer", "_predivide", "_num_groups", "_process_set", "_prefix", "_groups"}


def takes_part(process_set: ProcessSet) -> bool:
    """Return whether this rank reduces gradients with others.

    Raises:
        ValueError: init() was not called, or the set was not registered.
    """
    if process_set.size() is None:
        raise ValueError(f"process_set {process_set} is not registered: call hvd.init() first, with the set")
    return bool(process_set.included()) and process_set.size() != 1


class DistributedOptimizer(mx.optimizer.Optimizer):
    """An optimizer that averages gradients over all ranks, in place, before it updates the weights.

    Where several gradients are passed at a time, as Module and Trainer do, they are reduced in one call. Before that
    the ranks compare which weights they update. All attributes are those of the wrapped optimizer.
    """

    def __init__(
        self,
        optimizer: Any,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        """
        Args:
            optimizer: any mx.optimizer.Optimizer.
            gradient_predivide_factor: the part of the division by the number of ranks that is done before the sum.
            num_groups: the gradients of a call are fused in this many groups; 0: as the engine decides.
            process_set: the participating ranks; others update with their own gradients.
        """
        self._optimizer = checks.instance(optimizer, "optimizer", mx.optimizer.Optimizer, "an mx.optimizer.Optimizer")
        self._predivide = checks.number(gradient_predivide_factor, "gradient_predivide_factor")
        self._num_groups = checks.integer(num_groups, "num_groups", 0)
        self._process_set = checks.instance(process_set, "process_set", ProcessSet, "a ProcessSet")
        self._prefix: str | None = None
        self._groups: dict[Any, GradientGroup] = {}

    def __getattr__(self, name: str) -> Any:
        if name in _OWN:  # while it is unpickled
            raise AttributeError(name)
        return getattr(self._optimizer, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN:
            object.__setattr__(self, name, value)
        else:
            setattr(self._optimizer, name, value)

    def __getstate__(self) -> dict[str, Any]:
        process_set = None if self._process_set is global_process_set else self._process_set  # None: of any job
        return {**self.__dict__, "_groups": {}, "_prefix": None, "_process_set": process_set}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _process_set=state["_process_set"] or global_process_set)

    @property
    def wrapped(self) -> Any:
        """The optimizer that updates the weights."""
        return self._optimizer

    @property
    def aggregate_num(self) -> int:
        """How many weights MXNet's Updater passes at a time: all."""
        return 1 << 30

    def create_state(self, index: Any, weight: Any) -> Any:
        return self._optimizer.create_state(index, weight)

    def create_state_multi_precision(self, index: Any, weight: Any) -> Any:
        return self._optimizer.create_state_multi_precision(index, weight)

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Collective: reduce the gradients and update the weights, one or lists of several.

        Raises:
            MismatchError: the ranks' weights differ; on every rank.
            HorovodInternalError: a rank has been lost.
        """
        self._reduce(index, grad)
        self._forward(self._optimizer.update, index, weight, grad, state)

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Collective: update, where the optimizer may keep a copy of the weights in float32."""
        self._reduce(index, grad)
        self._forward(self._optimizer.update_multi_precision, index, weight, grad, state)

    def _forward(self, update: Any, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """The wrapped optimizer's update, of as many weights at a time as it takes."""
        if not isinstance(index, (list, tuple)):
            update(index, weight, grad, state)
            return
        most = self._optimizer.aggregate_num
        if not most:
            for one in zip(index, weight, grad, state, strict=True):
                update(*one)
        for start in range(0, len(index) if most else 0, most or 1):
            part = slice(start, start + most)
            update(index[part], weight[part], grad[part], state[part])

    def _reduce(self, index: Any, grad: Any) -> None:
        if not takes_part(self._process_set):
            return
        several = isinstance(index, (list, tuple))
        indices, grads = (index, grad) if several else ([index], [grad])
        with mxnet_errors():
            views = writable(grads)
            self._group([str(index) for index in indices], views).reduce(views, views)

    def _group(self, names: list[str], views: list[Any]) -> GradientGroup:
        key = tuple((name, x.shape, x.dtype) for name, x in zip(names, views, strict=True))
        if key not in self._groups:
            self._prefix = self._prefix or new_prefix(self._process_set)
            rows = {name: (shape, dtype.name) for name, shape, dtype in key}
            groups = split_evenly(names, self._num_groups)
            self._groups[key] = GradientGroup(rows, Average, self._predivide, self._process_set, groups, self._prefix)
        return self._groups[key]

    def set_learning_rate(self, lr: float) -> None:
        self._optimizer.set_learning_rate(lr)

    def set_lr_mult(self, args_lr_mult: Any) -> None:
        self._optimizer.set_lr_mult(args_lr_mult)

    def set_wd_mult(self, args_wd_mult: Any) -> None:
        self._optimizer.set_wd_mult(args_wd_mult)
