"""DistributedTrainer: Gluon's Trainer, on gradients that are reduced over all ranks before each update."""

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
from pycollective.mxnet.optimizer import DistributedOptimizer, takes_part


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
            gradient_predivide_factor: the part of the division by the number of ranks that is done before the sum.
            prefix: of the names in messages and in the timeline.
            num_groups: gradients are fused in this many groups; 0: as the engine decides.
            process_set: the participating ranks; others update with their own gradients.

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
            prefix = new_prefix(self._process_set)
            self._group = GradientGroup(rows, Average, self._predivide, self._process_set, groups, prefix)
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
