"""Decentralised SGD: ranks average parameters with their neighbours instead of summing gradients over all ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from pycollective import checks
from pycollective.comm.arguments.arrays import numpy_dtype, on_device, readable
from pycollective.comm.world import given_or_world
from pycollective.optim.arrays import Arrays, check_fit, contained, copy_into, named, to_host, zeros
from pycollective.optim.objects import require_same
from pycollective.optim.sgd import DistributedSGD

if TYPE_CHECKING:
    from pycollective.comm.communicator import Communicator
    from pycollective.schedule.mixing import Graph

ORDERS = ("combine_then_adapt", "adapt_then_combine")


class GossipSGD(DistributedSGD):
    """SGD on each rank's own gradients, with parameters mixed by the weights of a graph in every step.

    With W the matrix of the graph, x the parameters and g(x) the gradients of all ranks, momentum and weight decay left
    out, a step is one of

        combine_then_adapt      x = W x - lr * g(x)         D-PSGD: mixing can overlap the computation of g
        adapt_then_combine      x = W (x - lr * g(x))

    The ranks' parameters differ, but stay near their mean, which moves as with averaged gradients, because the columns
    of W sum to 1; see `consensus_distance`. The velocity and the decay, which applies to the parameters that lr * v is
    subtracted from, are local, with the formulas of DistributedSGD. Every `average_every` steps all parameters are
    averaged exactly instead of mixed.

    Sources: Lian et al., "Can decentralized algorithms outperform centralized algorithms?" (NeurIPS 2017), algorithm 1,
    whose gradients are those at x, as here, not at W x; Cattivelli and Sayed, "Diffusion LMS strategies for distributed
    estimation" (2010) for adapt-then-combine; Chen et al., "Accelerating gossip SGD with periodic global averaging"
    (ICML 2021).

    Attributes:
        comm, params, lr, momentum, weight_decay, nesterov: as in DistributedSGD.
        gradients: arrays like the parameters, for gradients of this rank; `step` does not change them.
        graph: the weights.
        order: "combine_then_adapt" or "adapt_then_combine".
        average_every: steps between exact averages, or None.
        steps: number of steps so far, which is the next step's number for the graph.
    """

    def __init__(
        self,
        params: Arrays,
        graph: Graph,
        lr: float,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        comm: Communicator | None = None,
        topology: Any = None,
        *,
        nesterov: bool = False,
        order: str = "combine_then_adapt",
        average_every: int | None = None,
    ) -> None:
        """Collective.

        Args:
            params, lr, momentum, weight_decay, comm, nesterov: as in DistributedSGD.
            graph: a function of (rank, size, step) that returns {source: weight}, the rank's own weight included: of
                `pycollective.graphs`, or your own; the same on all ranks. Rows and columns must sum to 1.
            topology: for exact averages, as for `Communicator.allreduce`.
            order: see above.
            average_every: average all parameters exactly in every such step, instead of mixing; None: never.

        Raises:
            ValueError: a column of the graph does not sum to 1 (named); see DistributedSGD for others.
            TypeError: graph is not a function; see DistributedSGD.
            MismatchError: names, shapes or dtypes differ between ranks.
        """
        self.order = checks.choice(order, "order", ORDERS)
        self.average_every = None if average_every is None else checks.integer(average_every, "average_every", 1)
        checks.function(graph, "graph", "a function of (rank, size, step)")
        super().__init__(params, lr, momentum, weight_decay, comm, topology, nesterov=nesterov)
        self.graph = graph
        self._mixing = Mixing(self.comm, graph)
        self._mixing.check(self.steps)
        self.gradients = contained(zeros(self._params), params)

    def step(self, grads: Arrays | None = None) -> None:
        """Collective: mix the parameters with the neighbours', and step on this rank's gradients.

        Args:
            grads: this rank's gradients, in the container, shapes and dtypes of the parameters; None if they have been
                written into `gradients`.

        Raises:
            ValueError: names or shapes differ from the parameters', or a column of the graph does not sum to 1; nothing
                has been sent or changed.
            TypeError: a dtype differs.
            MismatchError: the ranks' graphs or numbers of steps differ.
        """
        own = named(self.gradients if grads is None else grads, "grads")
        check_fit(own, self._params)
        exact = self.average_every is not None and (self.steps + 1) % self.average_every == 0
        if not exact:
            self._mixing.check(self.steps)
        if self.order == "adapt_then_combine":
            self._update(own)
        self._combine(exact)
        if self.order == "combine_then_adapt":
            self._update(own)
        self.steps += 1

    def average_parameters(self) -> None:
        """Collective: overwrite the parameters with their mean over the ranks, on every rank.

        For the end of training, and before `save_checkpoint`, which stores those of rank 0.
        """
        self._combine(exact=True)

    def zero_grad(self) -> None:
        """Set `gradients` to zero, for code that adds to them."""
        copy_into(named(self.gradients), zeros(self._params))

    def _combine(self, exact: bool) -> None:
        """Replace the parameters by the mixture of the neighbours', or by the mean of all."""
        copy_into(self._fused.views, self._params)
        if exact:
            self._fused.average(self._topology)
        else:
            for finish in [self._mixing.start(flat, flat, self.steps) for flat in self._fused.buffers]:
                finish()
        copy_into(self._params, self._fused.views)

    def _numbers(self) -> dict[str, Any]:
        return {**super()._numbers(), "steps": self.steps}

    def _set(self, lr: float, momentum: float, weight_decay: float, nesterov: bool, steps: int = 0) -> None:
        steps = checks.integer(steps, "steps", 0)
        super()._set(lr, momentum, weight_decay, nesterov)
        self.steps = steps


class Mixing:
    """Mixes arrays in the steps of an optimizer, after a check of the graph's columns.

    Attributes:
        comm: of the participating ranks.
        graph: the weights.
    """

    def __init__(self, comm: Communicator, graph: Graph) -> None:
        """
        Raises:
            TypeError: graph is not a function.
        """
        self.comm, self.graph = comm, checks.function(graph, "graph", "a function of (rank, size, step)")

    def start(self, x: Any, out: Any, step: int) -> Callable[[], None]:
        """Collective: start to store the weighted sum of the ranks' x in out, which may be x.

        Returns:
            a function that waits for it.
        """
        return self.comm.imix(x, self.graph, step, out).wait

    def check(self, step: int) -> None:
        """Check that every rank is read with weights that sum to 1; equal on all ranks, without communication.

        Otherwise mixing would move the mean over the ranks towards ranks that are read with more weight than others.

        Raises:
            TypeError, ValueError: as comm.mix, for any rank's weights; or a column of the matrix has another sum.
        """
        from pycollective.comm.arguments.graphs import evaluate
        from pycollective.schedule.mixing import TOLERANCE

        for column, total in enumerate(evaluate(self.graph, self.comm.size, step).column_sums):
            if abs(total - 1) > TOLERANCE:
                raise ValueError(
                    f"column {column} of the graph sums to {total:.6g} in step {step}: the weights with which ranks "
                    f"read rank {column} must sum to 1, or the mean over the ranks changes"
                )


def consensus_distance(comm: Communicator | None, params: Arrays) -> float:
    """Collective: the root mean square distance of the ranks' parameters to their mean.

    With x_r the vector of all parameters of rank r and m the mean of the n vectors:

        sqrt(1/n * sum over r of |x_r - m|^2)

    computed in float64. Kong et al., "Consensus control for decentralized deep learning" (ICML 2021), equation 4.

    Args:
        comm: of the ranks; None: that of `pycollective.init`.
        params: a dict or list of floating-point arrays in CPU or GPU memory, of the same shapes on all ranks.

    Returns:
        the distance, the same on all ranks; 0 if all parameters are equal.

    Raises:
        TypeError: not arrays. MismatchError: names or shapes differ between ranks.
    """
    comm = given_or_world(comm)
    values = {name: _wide(name, array) for name, array in named(params).items()}
    require_same("\n".join(f"{name!r} of shape {x.shape}" for name, x in values.items()), comm)
    flat = np.concatenate([np.zeros(0), *(x.ravel() for x in values.values())])
    distance = flat - comm.allreduce(flat, op="avg")
    squares = comm.allreduce(np.array([float(distance @ distance)]), op="avg")
    return float(np.sqrt(squares[0]))


def _wide(name: str, array: object) -> np.ndarray:
    detached = array.detach() if hasattr(array, "detach") else array  # of torch, which exports no trained parameter
    found = to_host(detached, repr(name)) if on_device(detached) else readable(detached, repr(name))
    if "float" not in str(found.dtype):
        raise TypeError(f"{name!r} has dtype {found.dtype}; parameters are floating-point arrays")
    host = found if isinstance(found, np.ndarray) else found.array(numpy_dtype(found.dtype))
    return host.astype(np.float64)
