"""The reduction of one optimizer's gradients: which, under which names, and what is done before and after.

And what the optimizers of Keras 3 and of tf_keras that use it have in common.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from pycollective import checks
from pycollective.hvd.arguments import OptimizerOptions, split_evenly
from pycollective.hvd.basics import engine_of
from pycollective.hvd.gradients.gradient_group import GradientGroup, new_prefix
from pycollective.keras.backends import KerasBackend


def key_of(variable: Any) -> Any:
    """Return one key for a Keras variable and for the TensorFlow variable that holds its value."""
    value = getattr(variable, "_value", variable)
    return getattr(value, "_unique_id", id(variable))


class GradientReduction:
    """Reduces the gradients of an optimizer.

    Attributes:
        backend: of the gradients.
        count: how often gradients were given to be reduced or, in a function that is compiled, traced.
        applying: whether a method that reduces is running, so that the optimizer may change variables.
    """

    def __init__(self, options: OptimizerOptions, backend: KerasBackend) -> None:
        self._options, self.backend = options, backend
        self._local: set[Any] = set()
        self._groups: dict[Any, GradientGroup] = {}
        self._prefix: str | None = None
        self._waiting: tuple[list[Any], list[Any]] | None = None
        self.count = 0
        self.applying = self._reduced_before = self._reduced_once = False

    def register_local_var(self, variable: Any) -> None:
        """Do not reduce this variable's gradients."""
        self._local.add(key_of(variable))

    def __call__(self, gradients: Sequence[Any], variables: Sequence[Any], only_if: Any = None) -> list[Any]:
        """Collective: the gradients after their reduction, in the same order.

        Args:
            gradients: tensors, sparse ones, and None.
            variables: theirs.
            only_if: a scalar tensor, equal on all ranks: if it is false, nothing is reduced.

        Raises:
            ValueError: init() was not called, or the options do not allow for a gradient.
        """
        options, process_set = self._options, self._options.process_set
        self.count += 1
        if process_set.included() is False:
            return list(gradients)
        engine_of(process_set)
        size = process_set.size() or 1
        if size == 1:
            return list(gradients)
        local = [key_of(variable) in self._local for variable in variables]
        kept = [i for i, mine in enumerate(local) if not mine]
        results = list(gradients)
        for i, mine in enumerate(local):
            if mine and options.scale_local_gradients and results[i] is not None:
                results[i] = self.backend.multiply(results[i], 1 / size)
        reduced = self._reduced([gradients[i] for i in kept], [variables[i] for i in kept], only_if)
        for i, gradient in zip(kept, reduced, strict=True):
            results[i] = gradient
        return results

    def _reduced(self, gradients: list[Any], variables: list[Any], only_if: Any) -> list[Any]:
        if not variables:
            return []
        if self._options.sparse_as_dense:
            gradients = [None if gradient is None else self.backend.to_dense(gradient) for gradient in gradients]
        compression, contexts = self._options.compression, {}
        for i, gradient in enumerate(gradients):
            if gradient is not None and hasattr(gradient, "dtype") and not hasattr(gradient, "dense_shape"):
                gradients[i], contexts[i] = compression.compress(gradient)
        group = self._group(variables)
        if only_if is None:
            reduced = self.backend.reduce(group, gradients)
        else:
            reduced = self.backend.reduce_if(only_if, group, gradients)
        for i, context in contexts.items():
            reduced[i] = compression.decompress(reduced[i], context)
        return reduced

    def _group(self, variables: Sequence[Any]) -> GradientGroup:
        rows = rows_of(variables)
        key = tuple(rows.items())
        if key not in self._groups:
            options = self._options
            if self._prefix is None:
                # Not earlier: a rank may create further optimizers, such as that of a model which it loads.
                self._prefix = new_prefix(options.process_set)
            self._groups[key] = GradientGroup(
                rows, options.op, options.gradient_predivide_factor, options.process_set,
                _group_names(options, list(rows), variables), self._prefix,
            )  # fmt: skip
        return self._groups[key]

    # -- when the gradients of several passes are accumulated, and when they are reduced before the optimizer's call ---

    @contextlib.contextmanager
    def before(self, gradients: Sequence[Any], variables: Sequence[Any]) -> Iterator[list[Any]]:
        """Reduce the gradients; while this is entered, those that the optimizer applies are these, which it yields."""
        reduced = self(gradients, variables)
        self._reduced_before = True
        try:
            yield reduced
        finally:
            self._reduced_before = False

    def for_next_step(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Reduce the gradients; the next step applies those that it is given as they are."""
        reduced = self(gradients, variables)
        self._reduced_once = True
        return reduced

    @contextlib.contextmanager
    def step(self, gradients: Sequence[Any], variables: Sequence[Any], accumulates: bool) -> Iterator[list[Any]]:
        """While this is entered, the optimizer may apply the gradients that it yields.

        Args:
            accumulates: the optimizer adds up the gradients of several steps, and reduces the sum by `accumulated`.
        """
        before, once = self.applying, self._reduced_once
        self.applying, self._reduced_once = True, False
        try:
            if self._reduced_before or once:
                yield list(gradients)
            elif accumulates:
                self.count += 1
                self._waiting = list(gradients), list(variables)
                yield list(gradients)
            else:
                yield self(gradients, variables)
        finally:
            self.applying, self._waiting = before, None

    def accumulated(self, gradients: Sequence[Any], only_if: Any = None) -> list[Any]:
        """Reduce what an optimizer has accumulated: gradients of the step's variables except those without one."""
        if self._waiting is None:
            return list(gradients)
        given, variables = self._waiting
        sums = iter(gradients)
        every = [None if gradient is None else next(sums) for gradient in given]
        return [gradient for gradient in self(every, variables, only_if) if gradient is not None]


def _group_names(options: OptimizerOptions, names: Sequence[str], variables: Sequence[Any]) -> list[list[str]]:
    """The names of each group's variables.

    Raises:
        ValueError: a variable is in two groups.
    """
    groups = options.groups
    if not groups:
        return []
    if isinstance(groups, (list, tuple)):
        name_of = {key_of(variable): name for name, variable in zip(names, variables, strict=True)}
        members = [[key_of(variable) for variable in group] for group in groups]
        if len(set().union(*members)) < sum(map(len, members)):
            raise ValueError("a variable can be in one group only")
        return [[name_of[key] for key in group if key in name_of] for group in members]
    return [list(part) for part in split_evenly(names, checks.integer(groups, "groups"))]


_Optimizer: Any = object
"""What ReducingOptimizer is mixed into, for the type checker."""


class ReducingOptimizer(_Optimizer):
    """Mixed into the class of an optimizer; its subclasses reduce in the methods of one package of Keras.

    Attributes:
        options: of the DistributedOptimizer.
        wrapped_class: the class of the optimizer without this one.
        called_by: the method to call in a train_step of one's own, besides apply_gradients.
    """

    options: ClassVar[OptimizerOptions]
    wrapped_class: ClassVar[type]
    called_by: ClassVar[str]
    reduction: GradientReduction

    def register_local_var(self, var: Any) -> None:
        """Do not reduce the gradients of this variable."""
        self.reduction.register_local_var(var)

    def finalize_variable_values(self: Any, var_list: Any) -> None:
        """Called at the end of `fit`.

        Raises:
            RuntimeError: the training did not use this optimizer, so that nothing was reduced.
        """
        if list(var_list) and self.reduction.count == 0:
            raise RuntimeError(
                "the training has changed variables without this DistributedOptimizer: no gradient was reduced. A "
                f"custom train_step must call optimizer.{self.called_by}() or apply_gradients()"
            )
        super().finalize_variable_values(var_list)


def subclass(kind: type, mixed_in: type[ReducingOptimizer], options: OptimizerOptions) -> Any:
    """The class of the optimizers that reduce; models are saved as with the original class."""
    base = getattr(kind, "wrapped_class", kind)
    members = {"options": options, "wrapped_class": base, "__module__": base.__module__, "__doc__": base.__doc__}
    return type(base.__name__, (mixed_in, base), members)


def copy_exclusions(optimizer: Any, made: Any) -> None:
    """What was excluded from weight decay, which is not part of an optimizer's configuration."""
    for name, value in vars(optimizer).items():
        if name.startswith("_exclude_from_weight_decay"):
            setattr(made, name, value)


def rows_of(variables: Sequence[Any]) -> dict[str, tuple[tuple[int, ...], str]]:
    """Name of each variable, in the given order -> its shape and element type.

    The names are equal on all ranks: without the numbers that Keras gives to layers, which differ if a rank has built
    further models before. Variables with equal names are numbered.
    """
    plain = [re.sub(r"_\d+(?=/|$)", "", str(getattr(v, "path", v.name)).partition(":")[0]) for v in variables]
    seen: Counter[str] = Counter()
    names = []
    for name in plain:
        seen[name] += 1
        names.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return {name: (tuple(v.shape), _dtype_name(v)) for name, v in zip(names, variables, strict=True)}


def _dtype_name(variable: Any) -> str:
    dtype = variable.dtype
    return dtype if isinstance(dtype, str) else str(dtype.name)
