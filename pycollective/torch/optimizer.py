"""DistributedOptimizer: any torch optimizer, on gradients reduced over all ranks while backward is still going on."""

from __future__ import annotations

import contextlib
import itertools
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from pycollective.engine import Item, Work
from pycollective.torch.arguments import OPS, Adasum, Average
from pycollective.torch.basics import engine_of, size
from pycollective.torch.compression import Compression
from pycollective.torch.gradients import GradientWindows, contiguous_view
from pycollective.torch.handles import internal_errors
from pycollective.torch.moving import sparse_allreduce_async
from pycollective.torch.process_sets import ProcessSet, global_process_set

_numbers = itertools.count()


class _Gradient:
    """The state of one parameter's gradient in a step.

    Attributes:
        passes: backward passes to come before it is reduced.
        finish: waits for the reduction and puts the result into p.grad; None: not started.
    """

    def __init__(self, name: str, priority: int, passes: int) -> None:
        self.name, self.priority, self.passes = name, priority, passes
        self.finish: Callable[[], None] | None = None


class _Reducing:
    """What a distributed optimizer has beside what it is: mixed into the optimizer's own class."""

    param_groups: list[dict[str, Any]]
    _base: type

    def _start(
        self,
        named: list[tuple[str, torch.Tensor]],
        compression: Any,
        backward_passes_per_step: int,
        op: int,
        gradient_predivide_factor: float,
        groups: Any,
        sparse_as_dense: bool,
        process_set: ProcessSet,
    ) -> None:
        self._compression, self._op = compression, op
        self._factor = gradient_predivide_factor
        self._sparse_as_dense = sparse_as_dense
        self.process_set = process_set
        self.backward_passes_per_step = backward_passes_per_step
        self._synchronized, self._should_synchronize = False, True
        number = next(_numbers)  # two optimizers may have parameters of the same names
        trained = [(name, p) for name, p in named if p.requires_grad]
        self._gradients = {
            p: _Gradient(f"gradient.{number}.{name}", priority, backward_passes_per_step)
            for priority, (name, p) in enumerate(trained)
        }
        self._group_of = _group_parameters([p for _, p in trained], groups)
        self._windows = GradientWindows(f"gradients.{number}", [p for _, p in trained], process_set)
        self._hooks = []
        if process_set.included() and size() > 1:
            me = weakref.ref(self)
            self._hooks = [p.register_post_accumulate_grad_hook(_hook(me)) for p in self._gradients]

    # -- reducing --------------------------------------------------------------------------------------------------

    def _accumulated(self, p: torch.Tensor) -> None:
        """A backward pass has added to a gradient."""
        gradient = self._gradients[p]
        if gradient.passes <= 0:
            raise AssertionError(
                f"{gradient.name} was computed more than backward_passes_per_step ({self.backward_passes_per_step}) "
                "times before step(): raise backward_passes_per_step to accumulate gradients"
            )
        gradient.passes -= 1
        if gradient.passes > 0:
            return
        group = self._group_of.get(p, (p,))
        if all(self._gradients[member].passes == 0 for member in group):
            self._reduce(group)

    def _reduce(self, group: Sequence[torch.Tensor]) -> None:
        """Start the reduction of the gradients of a group."""
        items, takers = [], []
        for p in group:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            if p.grad.is_sparse and not self._sparse_as_dense:
                self._reduce_sparse(p)
                continue
            item, take = self._item(p)
            items.append(item)
            takers.append((p, take))
        if not items:
            return
        with internal_errors():
            works = engine_of(self.process_set).submit(items)
        for (p, take), work in zip(takers, works, strict=True):
            self._gradients[p].finish = _finisher(work, take)

    def _item(self, p: torch.Tensor) -> tuple[Item, Callable[[], None]]:
        """The operation on a gradient, and what puts its result into p.grad."""
        assert p.grad is not None
        gradient = self._gradients[p]
        dense = p.grad.to_dense() if p.grad.is_sparse else p.grad
        small, context = self._compression.compress(dense)
        x = contiguous_view(small)
        before, after = (1 / self._factor, self._factor) if self._op == Average else (1.0, 1.0)
        item = Item("allreduce", gradient.name, x, x, OPS[self._op], prescale=before, postscale=after,
                    priority=gradient.priority)  # fmt: skip

        def take() -> None:
            if p.grad is None or x.data_ptr() == p.grad.data_ptr():
                return
            result = self._compression.decompress(x.view_as(small) if x.shape == small.shape else x, context)
            if p.grad.is_sparse:
                p.grad = result.to_sparse()
            else:
                p.grad.copy_(result.view_as(p.grad))

        return item, take

    def _reduce_sparse(self, p: torch.Tensor) -> None:
        finish = sparse_allreduce_async(p.grad, self._gradients[p].name, self._op, self.process_set)

        def take() -> None:
            p.grad = finish()

        self._gradients[p].finish = take

    def synchronize(self) -> None:
        """Wait until all gradients are reduced: p.grad then holds the result on every rank.

        Parameters that got no gradient here take part with zeros. Called by `step`; call it yourself to change
        gradients before the step, and the step under `skip_synchronize`.

        Raises:
            HorovodInternalError: a rank is gone. RuntimeError: the ranks' parameters differ.
        """
        if self._hooks:
            started: set[int] = set()
            for p, gradient in self._gradients.items():
                if gradient.finish is None and id(p) not in started:
                    group = [q for q in self._group_of.get(p, (p,)) if self._gradients[q].finish is None]
                    started.update(map(id, group))
                    self._reduce(group)
            try:
                with internal_errors():
                    for gradient in self._gradients.values():
                        if gradient.finish is not None:
                            gradient.finish()
            finally:
                self._reset()
        self._synchronized = True

    def _reset(self) -> None:
        for gradient in self._gradients.values():
            gradient.finish, gradient.passes = None, self.backward_passes_per_step

    # -- the optimizer's own methods ---------------------------------------------------------------------------------

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within it `step` does not synchronize: for use after a call of `synchronize`."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Reduce the gradients, then step.

        Args:
            closure: computes the loss and its gradients; these are reduced after every call of it.
        """
        under_way = any(gradient.finish is not None for gradient in self._gradients.values())
        if self._should_synchronize and (closure is None or under_way):
            if self._synchronized:
                warnings.warn(
                    "step() reduces the gradients again after synchronize(): use skip_synchronize()", stacklevel=2
                )
            self.synchronize()
        self._synchronized = False
        return self._base.step(self, None if closure is None else self._reducing(closure))  # type: ignore[attr-defined]

    def _reducing(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def reduced() -> Any:
            loss = closure()
            self.synchronize()
            self._synchronized = False
            return loss

        return reduced

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients, or with set_to_none=False fill them with zeros.

        Gradients that are kept move into windows, where they are reduced without being packed.

        Raises:
            AssertionError: reductions are under way: call step() or synchronize() first.
        """
        if any(gradient.finish is not None for gradient in self._gradients.values()):
            raise AssertionError("zero_grad() between backward() and step(): gradients are being reduced")
        for gradient in self._gradients.values():
            gradient.passes = self.backward_passes_per_step
        if set_to_none or not self._hooks or not self._windows.zero():
            self._base.zero_grad(self, set_to_none)  # type: ignore[attr-defined]

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Accumulate over so many backward passes from the next step on."""
        self.backward_passes_per_step = passes
        self._reset()

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """As of the optimizer itself; reductions that are under way are forgotten."""
        self._reset()
        self._synchronized, self._should_synchronize = False, True
        self._base.load_state_dict(self, *args, **kwargs)  # type: ignore[attr-defined]

    def unhook(self) -> None:
        """Reduce nothing any more: the optimizer is an ordinary one from now on."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []


class _SummingAdaptively(_Reducing):
    """With op=Adasum not gradients are reduced but what the optimizer makes of them: the steps of the ranks."""

    def _accumulated(self, p: torch.Tensor) -> None:
        """Nothing is reduced before step()."""

    def synchronize(self) -> None:
        """There is nothing to wait for before the step."""

    def skip_synchronize(self) -> Any:
        """Not to be had.

        Raises:
            AssertionError: always.
        """
        raise AssertionError("with op=Adasum steps are reduced, not gradients: skip_synchronize() has no meaning")

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step on this rank's gradients, then go by the adaptive sum of all ranks' steps."""
        before = {p: p.detach().clone() for p in self._gradients}
        loss = self._base.step(self, closure)  # type: ignore[attr-defined]
        if not self._hooks:
            return loss
        items, moves = [], []
        for p, gradient in self._gradients.items():
            small, context = self._compression.compress(p.detach() - before[p])
            x = small.contiguous()
            items.append(Item("adasum", gradient.name, x, x, priority=gradient.priority))
            moves.append((p, x, context))
        with internal_errors(), torch.no_grad():
            engine = engine_of(self.process_set)
            works = [work for item in items for work in engine.submit([item])]
            for (p, x, context), work in zip(moves, works, strict=True):
                work.wait()
                p.copy_(before[p] + self._compression.decompress(x, context))
        return loss


def _hook(me: weakref.ref[_Reducing]) -> Callable[[torch.Tensor], None]:
    """A hook that does not keep the optimizer alive."""

    def accumulated(p: torch.Tensor) -> None:
        optimizer = me()
        if optimizer is not None:
            optimizer._accumulated(p)

    return accumulated


def _finisher(work: Work, take: Callable[[], None]) -> Callable[[], None]:
    def finish() -> None:
        work.wait()
        take()

    return finish


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[torch.Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """An optimizer of the same class that steps on gradients reduced over all ranks.

    Each gradient is submitted to the engine as soon as backward has computed it. The engine fuses those that are ready
    at the same time; parameters that the next forward pass needs first go first. With the default topology the
    weights have the same bits whatever is fused with what.

    Args:
        optimizer: any torch optimizer; the new one shares its parameters, options and state. One that is distributed
            already is wrapped anew, and reduces nothing by itself any more.
        named_parameters: names of the parameters, the same on all ranks: model.named_parameters().
        compression: what gradients are sent as, see Compression.
        backward_passes_per_step: backward passes that are accumulated before gradients are reduced.
        op: Average, Sum, Min, Max or Product of the gradients; Adasum of the ranks' steps.
        gradient_predivide_factor: part of the division by the number of ranks that is done before the sum.
        num_groups: old name of `groups`.
        groups: number of groups of gradients that are reduced together, or the groups themselves.
        sparse_as_dense: reduce sparse gradients as dense ones.
        process_set: the ranks that take part.

    Raises:
        ValueError: names that are missing, doubled or no names; arguments that do not fit.
    """
    if backward_passes_per_step <= 0:
        raise ValueError("backward_passes_per_step must be > 0")
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor goes with op=Average only")
    if num_groups:
        warnings.warn("num_groups was replaced by groups", DeprecationWarning, stacklevel=2)
        groups = num_groups if groups is None else groups
    named = _named(optimizer, named_parameters)
    base = type(optimizer)
    if isinstance(optimizer, _Reducing):
        optimizer.unhook()
        base = optimizer._base
    mixed_in = _SummingAdaptively if op == Adasum else _Reducing
    made_of: Any = type(base.__name__, (mixed_in, base), {"_base": base, "__module__": base.__module__})
    made: Any = made_of.__new__(made_of)
    made.__dict__.update(optimizer.__dict__)
    made.__dict__.pop("step", None)  # of a scheduler that has wrapped the optimizer's
    made._start(
        named,
        compression,
        backward_passes_per_step,
        op,
        gradient_predivide_factor,
        groups,
        sparse_as_dense,
        process_set,
    )
    return made


def _named(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, torch.Tensor]] | None
) -> list[tuple[str, torch.Tensor]]:
    own = [p for group in optimizer.param_groups for p in group["params"]]
    if named_parameters is None:
        return [
            (f"noname.{i}.{j}", p)
            for i, group in enumerate(optimizer.param_groups)
            for j, p in enumerate(group["params"])
        ]
    named = list(named_parameters)
    if not all(isinstance(row, tuple) and len(row) == 2 for row in named):
        raise ValueError("named_parameters are tuples (name, parameter), as model.named_parameters() gives them")
    names = [name for name, _ in named]
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise ValueError(f"parameter names must be unique; found more than once: {', '.join(doubled)}")
    known = {id(p) for _, p in named}
    missing = [p for p in own if id(p) not in known]
    if missing:
        raise ValueError(f"{len(missing)} of the optimizer's parameters are not in named_parameters")
    mine = {id(p) for p in own}
    return [(name, p) for name, p in named if id(p) in mine]


def _group_parameters(
    trained: list[torch.Tensor], groups: int | Sequence[Sequence[torch.Tensor]] | None
) -> dict[torch.Tensor, tuple[torch.Tensor, ...]]:
    """Parameter -> all of its group; nothing for parameters without one."""
    if groups is None:
        return {}
    if isinstance(groups, int):
        if groups < 0:
            raise ValueError("groups is a number of groups, or the groups themselves as lists of tensors")
        if groups == 0:
            return {}
        whole, rest = divmod(len(trained), groups)
        ends = list(itertools.accumulate(whole + (i < rest) for i in range(groups)))
        parts = [trained[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    else:
        parts = [list(group) for group in groups]
        members = [p for part in parts for p in part]
        if not all(isinstance(p, torch.Tensor) for p in members):
            raise ValueError("groups are lists of tensors")
        if len({id(p) for p in members}) < len(members):
            raise ValueError("a parameter can be in one group only")
    known = set(map(id, trained))
    tuples = [tuple(p for p in part if id(p) in known) for part in parts]
    return {p: part for part in tuples for p in part}
