"""The gradients of a distributed optimizer, reduced over all ranks during the backward pass."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pycollective.engine import Item, Work
from pycollective.errors import MismatchError
from pycollective.hvd.arguments import OPS, gradient_factors
from pycollective.hvd.basics import size
from pycollective.hvd.gradients.agreement import DENSE, NONE, SPARSE, GradientAgreement
from pycollective.hvd.gradients.gradient_group import new_prefix
from pycollective.hvd.handles import internal_errors, refuse
from pycollective.hvd.process_sets import ProcessSet
from pycollective.torch.hvd.data_movement import sparse_allreduce_async
from pycollective.torch.hvd.gradients import GradientWindows, changes, nothing, sending, store, weak_hook
from pycollective.torch.hvd.submission import Started, Submission

_owners: weakref.WeakValueDictionary[int, GradientReducer] = weakref.WeakValueDictionary()
"""id of a parameter -> the optimizer that reduces its gradients; that optimizer keeps the parameter alive."""


@dataclass(slots=True)
class _Gradient:
    """The state of one parameter's gradient in a step.

    Attributes:
        passes: remaining backward passes before it is reduced.
        finish: waits for the reduction and stores the result in p.grad; None: not started.
        spoilt: changed while it was being reduced; an error has been raised for it.
    """

    name: str
    priority: int
    passes: int
    finish: Callable[[], None] | None = None
    spoilt: bool = False


class GradientReducer:
    """The gradient reduction of a distributed optimizer; see optimizer_methods.py."""

    param_groups: list[dict[str, Any]]

    def start_reducing(
        self,
        optimizer: torch.optim.Optimizer,
        named: list[tuple[str, torch.Tensor]],
        compression: Any,
        backward_passes_per_step: int,
        op: int,
        gradient_predivide_factor: float,
        groups: dict[torch.Tensor, tuple[torch.Tensor, ...]],
        sparse_as_dense: bool,
        process_set: ProcessSet,
    ) -> None:
        """`optimizer`: the one that this one was made from. `groups`: parameter -> all that are reduced with it."""
        self._compression, self._op = compression, op
        self._operator, self._factors = OPS.get(op, ""), gradient_factors(op, gradient_predivide_factor)
        self._sparse_as_dense, self._group_of = sparse_as_dense, groups
        self.process_set = process_set
        self.backward_passes_per_step = backward_passes_per_step
        self._synchronized, self._should_synchronize, self._replaced = False, True, False
        self._scaling = False  # synchronized for a GradScaler that is about to call step()
        ranks, included = size(), process_set.included()
        if included is None:
            raise ValueError(f"{process_set} is not registered: pass it to init() or add_process_set()")
        self._communicates = included and ranks > 1
        self._prefix = new_prefix(process_set)
        self._gradients: dict[torch.Tensor, _Gradient] = {}
        self._hooks: dict[torch.Tensor, torch.utils.hooks.RemovableHandle] = {}
        self._agreement: GradientAgreement | None = None
        self._agreed: list[torch.Tensor] = []  # in the order of its names
        self._windows: GradientWindows | None = None
        self._submission = Submission(process_set)
        self.made_of: list[Any] = [optimizer]
        if isinstance(optimizer, GradientReducer):
            self.made_of += optimizer.made_of
        for name, p in named:
            self._register(name, p)
        self._watch()
        weakref.finalize(self, _unhook, self._hooks).atexit = False

    @property
    def _parameter_names(self) -> dict[torch.Tensor, str]:
        """Parameter -> name; scripts read this attribute of Horovod's optimizers."""
        start = len(self._prefix) + 1
        return {p: gradient.name[start:] for p, gradient in self._gradients.items()}

    def _register(self, name: str, p: torch.Tensor) -> None:
        number = len(self._gradients)
        self._gradients[p] = _Gradient(f"{self._prefix}.{name}", number, self.backward_passes_per_step)
        self._agreement = None
        older = _owners.get(id(p))
        if older is not None and older is not self:
            older._replace()
        _owners[id(p)] = self

    def _replace(self) -> None:
        """Another optimizer reduces these gradients from now on."""
        for p, gradient in self._gradients.items():
            if gradient.finish is not None:  # of an aborted step; a reduction in progress may still change it
                p.grad = None
        self.reset_reduction()
        _unhook(self._hooks)
        self._replaced = True

    def _refuse_if_replaced(self) -> None:
        if self._replaced:
            raise RuntimeError("another DistributedOptimizer was created from these parameters since: use that one")

    def _watch(self) -> None:
        """Hook the parameters, including those added or unfrozen since the last call."""
        if not self._communicates:
            return
        hook = weak_hook(self, GradientReducer.note_accumulated)
        for p in self._own():
            if p not in self._gradients:
                self._register(f"added.{len(self._gradients)}", p)
            if p.requires_grad and p not in self._hooks:
                self._hooks[p] = p.register_post_accumulate_grad_hook(hook)

    def _own(self) -> Iterator[torch.Tensor]:
        return (p for group in self.param_groups for p in group["params"])

    # -- reducing --------------------------------------------------------------------------------------------------

    def note_accumulated(self, p: torch.Tensor) -> None:
        """Called after a backward pass has accumulated into a gradient."""
        gradient = self._gradients[p]
        if gradient.passes <= 0 or gradient.finish is not None:
            gradient.spoilt = True
            raise AssertionError(
                f"{gradient.name} was computed more than backward_passes_per_step ({self.backward_passes_per_step}) "
                "times before step(): raise backward_passes_per_step to accumulate gradients"
            )
        gradient.passes -= 1
        self._scaling = False
        group = self._group_of.get(p)
        if group is None:
            if gradient.passes == 0:
                self._reduce((p,))
        elif all(self._gradients[member].passes == 0 for member in group):
            self._reduce(group)

    def _reduce(self, group: Sequence[torch.Tensor]) -> None:
        """Start the reduction of the gradients of a group."""
        items: list[Item] = []
        started: list[Started] = []
        before, after = self._factors
        for p in group:
            gradient, grad = self._gradients[p], p.grad
            assert grad is not None
            if grad.is_sparse and not self._sparse_as_dense:
                self._reduce_sparse(p)
                continue
            try:
                x, axes, take = sending(p, grad, self._compression)
            except Exception as error:
                refuse(gradient.name, self.process_set, error)
                raise
            items.append(Item("allreduce", gradient.name, x, x, self._operator, -1, None, before, after,
                              gradient.priority, None, False, axes))  # fmt: skip
            started.append(_when_submitted(p, grad, gradient, take))
            gradient.finish = _not_submitted
        if len(group) > 1 and items:
            self._submission.submit(items, started, grouped=True)
        elif items:
            self._submission.add(items[0], started[0])

    def _reduce_sparse(self, p: torch.Tensor) -> None:
        finish = sparse_allreduce_async(p.grad, self._gradients[p].name, self._op, self.process_set)

        def take() -> None:
            p.grad = finish()

        self._gradients[p].finish = take

    def synchronize(self) -> None:
        """Wait until all gradients are reduced: p.grad then has the result on every rank.

        A parameter that has a gradient only on other ranks takes part with zeros; one that has none on any rank keeps
        none. Called by `step`; call it yourself to change gradients before the step, then call `step` under
        `skip_synchronize`.
        Raises:
            HorovodInternalError: a rank has been lost.
            RuntimeError: the ranks' parameters differ, another optimizer was made from this one's parameters, or a
                gradient was changed between backward and this call.
        """
        self._refuse_if_replaced()
        if self._communicates:
            self._watch()
            try:
                with internal_errors(), torch.no_grad():
                    self._reduce_rest()
                    self._finish()
            finally:
                self.reset_reduction()
        self._synchronized = True

    def _agree(self) -> GradientAgreement:
        if self._agreement is None:
            named = {name: p for p, name in self._parameter_names.items()}
            rows = {name: (tuple(p.shape), str(p.dtype)) for name, p in named.items()}
            self._agreement = GradientAgreement(self._prefix, rows, self.process_set)
            self._agreed = [named[name] for name in self._agreement.names]
        return self._agreement

    def _reach(self) -> dict[torch.Tensor, int]:
        """Collective: parameter -> the kinds of gradient that ranks have.

        One that has a gradient on some ranks is reduced, with zeros from the others; one that has none on any rank is
        left alone, as in a single process.
        """
        agreement = self._agree()
        kinds = agreement.reach(list(map(_kind_of, self._agreed)), self._submission.run_with)
        return dict(zip(self._agreed, kinds, strict=True))

    def _reduce_rest(self) -> None:
        """Start what backward has not: gradients with passes left, of incomplete groups, or of other ranks only."""
        for p, gradient in self._gradients.items():
            if gradient.finish is None and p.grad is not None and p not in self._group_of:
                self._reduce((p,))
        kinds = self._reach()
        for p, kind in kinds.items():
            if kind != NONE and p.grad is None:
                p.grad = nothing(p, kind == SPARSE)
        for p, gradient in self._gradients.items():
            if gradient.finish is None and p.grad is not None:
                self._reduce([member for member in self._group_of.get(p, (p,)) if member.grad is not None])
        self._submission.flush()
        if not self._sparse_as_dense:
            self._refuse_both([p for p, kind in kinds.items() if kind == DENSE | SPARSE])
        if self._windows is None:
            dense = [p for p in self._gradients if kinds[p] == DENSE]
            self._windows = GradientWindows(f"{self._prefix}.windows", dense, self.process_set)

    def _refuse_both(self, mixed: list[torch.Tensor]) -> None:
        """Raise if gradients are dense on some ranks and sparse on others.

        Operations in progress are completed so that no rank waits for them indefinitely: each rank also takes part in
        the other kind, with an empty gradient.
        """
        if not mixed:
            return
        names = [self._parameter_names[p] for p in mixed]
        problem = self._agree().kinds_differ(names, "sparse_as_dense=True reduces both")
        rest: list[Callable[[], None]] = []
        for p in mixed:
            gradient, mine = self._gradients[p], p.grad
            started = gradient.finish
            assert mine is not None and started is not None
            p.grad = nothing(p, not mine.is_sparse)
            self._reduce((p,))
            self._submission.flush()
            assert gradient.finish is not None
            rest.append(gradient.finish)
            p.grad, gradient.finish = mine, started
        with contextlib.suppress(MismatchError):  # in a group that differs on other ranks
            self._finish(rest)
        raise problem

    def _finish(self, others: Sequence[Callable[[], None]] = ()) -> None:
        """Wait for all, even if some fail: no reduction is in progress afterwards. `others`: further waits."""
        failed: Exception | None = None
        started = [gradient.finish for gradient in self._gradients.values() if gradient.finish is not None]
        for finish in (*started, *others):
            try:
                finish()
            except Exception as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def _in_progress(self) -> bool:
        return any(gradient.finish is not None for gradient in self._gradients.values())

    def reset_reduction(self) -> None:
        self._submission.clear()
        for gradient in self._gradients.values():
            gradient.finish, gradient.passes, gradient.spoilt = None, self.backward_passes_per_step, False


def _kind_of(p: torch.Tensor) -> int:
    gradient = p.grad
    if gradient is None:
        return NONE
    return SPARSE if gradient.is_sparse else DENSE


def _unhook(hooks: dict[torch.Tensor, torch.utils.hooks.RemovableHandle]) -> None:
    for hook in hooks.values():
        hook.remove()
    hooks.clear()


def _not_submitted() -> None:
    raise RuntimeError("a gradient's reduction has not been submitted, because of an earlier error")


def _when_submitted(
    p: torch.Tensor, grad: torch.Tensor, gradient: _Gradient, take: Callable[[], None] | None
) -> Started:
    """What to do once the reduction of a gradient has been submitted: set the function that waits for its result.

    Args:
        grad: p.grad, which torch must not change until then: this raises RuntimeError.
        take: stores the result in p.grad; None: p.grad's memory is reduced.
    """
    before = changes(grad)

    def started(work: Work) -> None:
        gradient.finish = functools.partial(finish, work)

    def finish(work: Work) -> None:
        work.wait()
        now = p.grad
        if now is grad and changes(grad) != before and not gradient.spoilt:
            raise RuntimeError(
                f"{gradient.name} was changed while it was being reduced: call synchronize() before you change "
                "gradients (with torch.nn.utils.clip_grad_norm_, e.g.), and step() under skip_synchronize()"
            )
        if take is not None:
            take()
        elif now is not None and now is not grad:
            store(now, p, grad)

    return started
