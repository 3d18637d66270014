"""DistributedOptimizer and DistributedTrainer: gradients are reduced over all ranks before each update.

The former is any optimizer of MXNet, the latter Gluon's Trainer.
"""

from __future__ import annotations

import tempfile
import warnings
from typing import Any

import mxnet as mx
import numpy as np

from pycollective import checks
from pycollective.hvd.arguments import Average, compressor, split_evenly
from pycollective.hvd.gradients.gradient_group import GradientGroup, new_prefix
from pycollective.hvd.process_sets import ProcessSet, global_process_set
from pycollective.mxnet.arrays import writable
from pycollective.mxnet.calls import mxnet_errors
from pycollective.mxnet.compression import Compression

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
            return
        for start in range(0, len(index), most):
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


class DistributedTrainer(mx.gluon.Trainer):
    """A Trainer whose step averages the gradients over all ranks, all in one call, in place.

    Before that the ranks compare which gradients each of them has computed. The weights are bitwise identical on all
    ranks however gradients are fused, if they were at the start: see broadcast_parameters.
    """

    def __init__(
        self,
        params: Any,
        optimizer: Any,
        optimizer_params: Any = None,
        compression: Any = Compression.none,
        gradient_predivide_factor: float = 1.0,
        prefix: str | None = None,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        """
        Args:
            params: block.collect_params(), or a dict or list of Parameters. Their names are the same on all ranks, in
                any order.
            optimizer, optimizer_params: see mx.gluon.Trainer. A DistributedOptimizer is unwrapped.
            compression: how gradients are compressed for communication, see Compression.
            prefix: of the names in messages and in the timeline.
            gradient_predivide_factor, num_groups, process_set: see DistributedOptimizer.

        Raises:
            ValueError: two parameters of the same name; sparse parameters or gradients, or parameters on several
                devices, which would not be reduced.
        """
        if isinstance(optimizer, DistributedOptimizer):
            warnings.warn("DistributedTrainer reduces gradients itself: the optimizer is unwrapped", stacklevel=2)
            optimizer = optimizer.wrapped
        self._compression = compressor(compression)
        self._predivide = checks.number(gradient_predivide_factor, "gradient_predivide_factor")
        self._names_prefix = "" if prefix is None else checks.text(prefix, "prefix")
        self._num_groups = checks.integer(num_groups, "num_groups", 0)
        self._process_set = checks.instance(process_set, "process_set", ProcessSet, "a ProcessSet")
        self._group: GradientGroup | None = None
        super().__init__(params, optimizer, optimizer_params=optimizer_params, kvstore=None)
        if len(self._param2idx) != len(self._params):
            raise ValueError("DistributedTrainer needs parameters of different names")
        if self._contains_sparse_weight or self._contains_sparse_grad:
            raise ValueError("DistributedTrainer needs parameters and gradients of storage type 'default'")
        if self._contexts and len(self._contexts) > 1:
            raise ValueError(f"DistributedTrainer needs one device a rank, not {self._contexts}")

    def _allreduce_grads(self) -> None:
        """Called by step() and allreduce_grads().

        Raises:
            MismatchError: gradients that are not needed (grad_req="null") or were not computed since the last step on
                some ranks only, or different parameters; on every rank, with the names.
            HorovodInternalError: a rank has been lost.
        """
        if not takes_part(self._process_set):
            return
        with mxnet_errors():
            group = self._gradient_group()
            gradients = [None if p.grad_req == "null" else p.list_grad()[0] for p in self._params]
            compressed = [None if g is None else self._compression.compress(g) for g in gradients]
            found = iter(writable([row[0] for row in compressed if row is not None]))
            views = [None if row is None else next(found) for row in compressed]
            group.reduce(views, views, [_is_stale(p) for p in self._params])
        for gradient, row in zip(gradients, compressed, strict=True):
            if gradient is not None and row is not None and row[0] is not gradient:
                self._compression.decompress(*row).copyto(gradient)

    def _gradient_group(self) -> GradientGroup:
        if self._group is None:
            rows = {
                f"{self._names_prefix}{p.name}": (p.shape, np.dtype(p.list_data()[0].dtype).name) for p in self._params
            }
            groups = split_evenly(list(rows), self._num_groups)
            self._group = GradientGroup(rows, Average, self._predivide, self._process_set, groups)
        return self._group

    def states(self) -> bytes:
        """The state of the optimizer, e.g. its momentum, as `save_states` writes it."""
        with tempfile.NamedTemporaryFile() as file:
            self.save_states(file.name)
            return file.read()

    def set_states(self, states: bytes) -> None:
        """Replace the state of the optimizer by a result of `states`."""
        with tempfile.NamedTemporaryFile() as file:
            file.write(states)
            file.flush()
            self.load_states(file.name)


def _is_stale(parameter: Any) -> bool:
    """Return whether a gradient is needed, but was not computed since the last update."""
    return parameter.grad_req != "null" and not parameter.list_data()[0]._fresh_grad  # noqa: SLF001 (as in Trainer)
