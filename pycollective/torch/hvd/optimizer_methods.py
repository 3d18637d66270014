"""The optimizer methods of a distributed optimizer, on gradients or steps of all ranks."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from pycollective.engine import Item, Work
from pycollective.hvd.arguments import Sum
from pycollective.hvd.basics import engine_of
from pycollective.hvd.handles import internal_errors
from pycollective.torch.hvd.gradient_reducer import GradientReducer


class OptimizerMethods(GradientReducer):
    """Mixed into an optimizer's class, `wrapped_class`: its methods on the gradients of all ranks."""

    state: dict[Any, Any]
    wrapped_class: Any

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within this context `step` does not synchronize: for use after `synchronize`."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Reduce the gradients, then step.

        Args:
            closure: computes the loss and its gradients; after every call the gradients and the loss are reduced, as
                optimizers base decisions on the loss, which must be the same on all ranks.

        Returns:
            the loss, reduced over all ranks.

        Raises:
            AssertionError: under skip_synchronize without a preceding call of synchronize.
            Otherwise the same as synchronize.
        """
        self._refuse_if_replaced()
        if not self._should_synchronize and self._in_progress():
            raise AssertionError("step() under skip_synchronize() needs a call of synchronize() before")
        if self._should_synchronize and not self._scaling and (closure is None or self._in_progress()):
            if self._synchronized:
                # Begins like Horovod's warning, which scripts filter by its text.
                warnings.warn(
                    "optimizer.step() called without optimizer.skip_synchronize() after synchronize(): "
                    "the gradients are reduced once more",
                    stacklevel=2,
                )
            self.synchronize()
        self._synchronized = self._scaling = False
        for optimizer in self.made_of:
            optimizer._opt_called = True  # their learning rate schedulers check it
        if closure is None:
            return self.wrapped_class.step(self)
        return self.wrapped_class.step(self, self._reducing(closure))

    step.hooked = True  # type: ignore[attr-defined]  # torch would call the hooks of a step here and in wrapped_class's again

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Queried by torch.amp.GradScaler before it looks for infinities.

        It has to find them in the reduced gradients: otherwise it would change gradients that are being reduced, and
        only some of the ranks would step.
        """
        if self._should_synchronize and not self._synchronized and not self._scaling:
            self.synchronize()
            self._synchronized, self._scaling = False, True
        return bool(self.__dict__.get("_step_supports_amp_scaling", False))

    def _reducing(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def reduced() -> Any:
            loss = closure()
            self.synchronize()
            self._synchronized = False
            return self._of_all(loss)

        return reduced

    def _of_all(self, loss: Any) -> Any:
        if not self._communicates or not isinstance(loss, (float, torch.Tensor)):
            return loss
        x = loss.detach().clone() if isinstance(loss, torch.Tensor) else torch.tensor(loss, dtype=torch.float64)
        if not x.is_floating_point() or x.numel() != 1:
            return loss
        op = "sum" if self._op == Sum else "avg"
        with internal_errors():
            engine_of(self.process_set).run([Item("allreduce", f"{self._prefix}.loss", x, x, op)])
        return x if isinstance(loss, torch.Tensor) else x.item()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Set the gradients to None, or with set_to_none=False fill them with zeros.

        Gradients that are kept are moved to windows, where they are reduced without packing.

        Raises:
            AssertionError: reductions are in progress: call step() or synchronize() first.
        """
        if self._in_progress():
            raise AssertionError(
                "zero_grad() between backward() and step(): gradients are being reduced; call synchronize() before it"
            )
        self._watch()
        for gradient in self._gradients.values():
            gradient.passes = self.backward_passes_per_step
        windows = None if set_to_none or not self._communicates else self._windows
        if windows is None or not windows.zero(self._own()):
            self.wrapped_class.zero_grad(self, set_to_none)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Set the number of backward passes to accumulate, from the next step on."""
        self.backward_passes_per_step = passes
        for gradient in self._gradients.values():
            gradient.passes = passes

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """Load like the base class; reductions in progress are discarded."""
        self.reset_reduction()
        self._synchronized, self._should_synchronize = False, True
        self.wrapped_class.load_state_dict(self, *args, **kwargs)
        for optimizer in self.made_of:  # a learning rate scheduler may refer to them
            optimizer.state, optimizer.param_groups = self.state, self.param_groups

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle and copy as an optimizer of the base class."""
        return bare, (self.wrapped_class,), self.wrapped_class.__getstate__(self)


class AdasumMethods(OptimizerMethods):
    """Methods with op=Adasum: the optimizer's steps are reduced instead of the gradients."""

    def _watch(self) -> None:
        """Nothing is reduced before step()."""

    _step_supports_amp_scaling = False  # a GradScaler scales each rank's own gradients, as step() takes them

    def synchronize(self) -> None:
        """Does nothing: no reduction starts before the step."""

    def skip_synchronize(self) -> Any:
        """Unavailable with op=Adasum.

        Raises:
            AssertionError: always.
        """
        raise AssertionError("with op=Adasum steps are reduced, not gradients: skip_synchronize() has no meaning")

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step on this rank's gradients, then apply the adaptive sum of all ranks' steps instead.

        Returns:
            this rank's loss.
        """
        self._refuse_if_replaced()
        before = {p: p.detach().clone() for p in self._gradients}
        loss = self.wrapped_class.step(self) if closure is None else self.wrapped_class.step(self, closure)
        for optimizer in self.made_of:
            optimizer._opt_called = True
        if not self._communicates:
            return loss
        with internal_errors(), torch.no_grad():
            self._reach()
            for p, x, context, work in [self._submit(p, before[p]) for p in before if p.requires_grad]:
                work.wait()
                p.copy_(before[p] + self._compression.decompress(x, context))
        return loss

    step.hooked = True  # type: ignore[attr-defined]

    def _submit(self, p: torch.Tensor, before: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, Any, Work]:
        gradient = self._gradients[p]
        small, context = self._compression.compress(p.detach() - before)
        x = small.contiguous()
        (work,) = engine_of(self.process_set).submit([Item("adasum", gradient.name, x, x, priority=gradient.priority)])
        return p, x, context, work


def bare(kind: Any) -> Any:
    """An optimizer of a class, without its state."""
    return kind.__new__(kind)
