"""GossipOptimizer: any torch optimizer on a rank's own gradients, with parameters mixed with those of neighbours."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from pycollective import checks
from pycollective.comm.communicator import Communicator
from pycollective.hvd.basics import engine_of
from pycollective.hvd.handles import internal_errors
from pycollective.hvd.process_sets import ProcessSet, global_process_set
from pycollective.optim.arrays import copy_into
from pycollective.optim.fusion import Fused
from pycollective.optim.gossip import ORDERS, Mixing
from pycollective.schedule.mixing import Graph
from pycollective.torch.hvd.gradient_reducer import GradientReducer
from pycollective.torch.hvd.gradients import changes, weak_hook
from pycollective.torch.hvd.optimizer_methods import bare
from pycollective.torch.optimizer import unique_names, with_methods


def GossipOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None,
    graph: Graph,
    *,
    order: str = "combine_then_adapt",
    average_every: int | None = None,
    topology: Any = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Collective: an optimizer of the same class whose ranks mix parameters with neighbours instead of gradients.

    Each rank steps on its own gradients, as in `pycollective.optim.GossipSGD`, which has the formulas and sources. With
    combine_then_adapt the parameters are mixed in the background from the first gradient of a backward pass on, until
    `step` needs them; with adapt_then_combine within `step`. Parameters that require gradients are mixed, buffers of
    modules are not. Every rank must take the same number of steps.

    The result has, besides the methods of its class, `average_parameters()`, for the end of training and before
    checkpoints, and the attribute `gossip_steps`, the number of steps so far.

    Args:
        optimizer: any torch optimizer; the new one shares its parameters, options and state.
        named_parameters: names of the parameters, the same on all ranks: model.named_parameters().
        graph: a function of (rank, size, step) that returns {source: weight}: of `pycollective.graphs`, or your own.
        order: "combine_then_adapt" or "adapt_then_combine".
        average_every: average all parameters exactly in every such step, instead of mixing; None: never.
        topology: for exact averages.
        process_set: the participating ranks, by whose numbers and size the graph is called; others step alone.

    Raises:
        ValueError: names are missing or duplicated; a column of the graph does not sum to 1; the optimizer is
            distributed already; the process set is not registered.
        TypeError: not an optimizer; graph is not a function; parameters that are not of a floating-point type.
        MismatchError: parameters differ between ranks.
    """
    checks.instance(optimizer, "optimizer", torch.optim.Optimizer, "a torch optimizer")
    if isinstance(optimizer, (GradientReducer, Gossiping)):
        raise ValueError("this optimizer is distributed already: pass the torch optimizer that it was made from")
    checks.choice(order, "order", ORDERS)
    every = None if average_every is None else checks.integer(average_every, "average_every", 1)
    checks.instance(process_set, "process_set", ProcessSet, "a ProcessSet")
    included = process_set.included()
    if included is None:
        raise ValueError(f"{process_set} is not registered: pass it to init() or add_process_set()")
    comm = engine_of(process_set).comm.dup() if included else None
    named = {name: p for name, p in unique_names(optimizer, named_parameters) if p.requires_grad}
    made = with_methods(Gossiping, type(optimizer), optimizer)
    made.start_gossip(optimizer, named, comm, graph, order, every, topology)
    return made


class Gossiping:
    """Mixed into an optimizer's class, `wrapped_class`: its steps, with parameters mixed with neighbours'."""

    param_groups: list[dict[str, Any]]
    wrapped_class: Any

    def start_gossip(
        self,
        optimizer: torch.optim.Optimizer,
        named: dict[str, torch.Tensor],
        comm: Communicator | None,
        graph: Graph,
        order: str,
        average_every: int | None,
        topology: Any,
    ) -> None:
        """Collective. `optimizer`: the one that this one was made from. `comm`: None on ranks that step alone."""
        self._made_of, self._named, self._topology = optimizer, named, topology
        self._order, self._average_every, self.gossip_steps = order, average_every, 0
        self._in_progress: list[Callable[[], None]] = []
        self._versions: list[int | None] = []  # of the parameters when their mixing started
        self._mixing: Mixing | None = None
        if comm is None:
            return
        self._mixing = Mixing(comm, graph)
        self._mixing.check(0)
        comm.explain("allreduce", 0, topology)  # reject unknown topologies here
        self._fused = Fused({name: p.detach() for name, p in named.items()}, comm)
        if order == "combine_then_adapt":
            hook = weak_hook(self, lambda me, _: me._start())  # noqa: SLF001
            for p in named.values():
                p.register_post_accumulate_grad_hook(hook)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Collective: mix the parameters, and step on this rank's gradients.

        Args:
            closure: computes the loss and its gradients; called once, before the parameters are mixed.

        Returns:
            this rank's loss, if there is a closure.

        Raises:
            ValueError: a column of the graph does not sum to 1.
            RuntimeError: parameters were frozen, unfrozen or added since this optimizer was made, or changed since
                backward().
            HorovodInternalError: a rank has been lost.
        """
        self._require_same_parameters()
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._order == "adapt_then_combine":
            if self._mixing is not None:
                self._mixing.check(self.gossip_steps)
            self.wrapped_class.step(self)
        self._start()
        self._finish()
        if self._order == "combine_then_adapt":
            self.wrapped_class.step(self)
        self.gossip_steps += 1
        self._made_of._opt_called = True  # its learning rate schedulers check it
        return loss

    step.hooked = True  # type: ignore[attr-defined]  # wrapped_class's step calls the hooks of a step

    def average_parameters(self) -> None:
        """Collective: overwrite the parameters with their mean over the ranks, on every rank."""
        self._finish_unused()
        self._start(exact=True)
        self._finish()

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Queried by torch.amp.GradScaler, which would skip the step on those ranks that find infinities."""
        raise RuntimeError("a GradScaler skips steps on some ranks only, for which the others would wait: use bfloat16")

    def _start(self, exact: bool = False) -> None:
        """Start to mix or average the parameters, unless it has been started."""
        if self._in_progress or self._mixing is None:
            return
        step, comm = self.gossip_steps, self._mixing.comm
        exact = exact or (self._average_every is not None and (step + 1) % self._average_every == 0)
        if not exact:
            self._mixing.check(step)
        with internal_errors():
            copy_into(self._fused.views, {name: p.detach() for name, p in self._named.items()})
            self._versions = [changes(p) for p in self._named.values()]
            for flat in self._fused.buffers:
                if exact:
                    self._in_progress.append(comm.iallreduce(flat, flat, op="avg", topology=self._topology).wait)
                else:
                    self._in_progress.append(self._mixing.start(flat, flat, step))

    def _finish(self) -> None:
        """Wait for the mixture, and store it in the parameters."""
        if self._mixing is None:
            return
        self._finish_unused()
        for (name, p), before in zip(self._named.items(), self._versions, strict=True):
            if changes(p) != before:
                raise RuntimeError(f"{name} was changed between backward() and step(), while parameters were mixed")
        copy_into({name: p.detach() for name, p in self._named.items()}, self._fused.views)

    def _finish_unused(self) -> None:
        waiting, self._in_progress = self._in_progress, []
        with internal_errors():
            for finish in waiting:
                finish()

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle and copy as an optimizer of the base class."""
        return bare, (self.wrapped_class,), self.wrapped_class.__getstate__(self)

    def _require_same_parameters(self) -> None:
        trained = {id(p) for group in self.param_groups for p in group["params"] if p.requires_grad}
        if trained != {id(p) for p in self._named.values()}:
            raise RuntimeError(
                "parameters were frozen, unfrozen or added since this GossipOptimizer was made: make a new one on all "
                "ranks"
            )
