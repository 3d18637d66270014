"""What Keras leaves to its backends: how their tensors are reduced, cast and read; one file for each backend."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, Protocol

from pycollective.hvd.gradients.gradient_group import GradientGroup


class KerasBackend(Protocol):
    """The functions of the modules in this folder."""

    def reduce(self, group: GradientGroup, gradients: Sequence[Any]) -> list[Any]:
        """Collective: reduce a step's gradients, also in a function that is being compiled.

        Raises:
            ValueError: the function is compiled in a way that cannot call this library.
        """
        ...

    def reduce_if(self, condition: Any, group: GradientGroup, gradients: Sequence[Any]) -> list[Any]:
        """Reduce if `condition`, a scalar tensor equal on all ranks, is true; return the gradients otherwise.

        Of JAX alone: its optimizers clip gradients in every step, those of others in the steps that update.
        """
        ...

    def to_dense(self, gradient: Any) -> Any:
        """A sparse gradient as a dense tensor; others unchanged."""
        ...

    def cast(self, tensor: Any, dtype: Any) -> Any:
        """The tensor in another type: the name of one, or what the attribute dtype of a tensor returned."""
        ...

    def multiply(self, gradient: Any, factor: float) -> Any:
        """The product, in the gradient's type."""
        ...

    def array(self, value: Any) -> Any:
        """A contiguous copy of a tensor, or of anything that the backend converts, in a form that collectives take."""
        ...

    def tensor(self, array: Any) -> Any:
        """The reverse of `array`."""
        ...


def named(name: str) -> KerasBackend:
    """
    Raises:
        ValueError: Keras has the backend, this library does not.
    """
    if name not in ("tensorflow", "jax", "torch"):
        raise ValueError(f"the backend of Keras must be tensorflow, jax or torch to train on several ranks, not {name}")
    module: Any = importlib.import_module(f"{__name__}.{name}")
    return module  # type: ignore[no-any-return]


def of_tensor(tensor: Any) -> KerasBackend:
    """The backend whose tensor this is: both Keras 3 and tf_keras may be in use in a process."""
    module = type(tensor).__module__.partition(".")[0]
    return current() if module == "keras" else named({"jaxlib": "jax", "tf_keras": "tensorflow"}.get(module, module))


def current() -> KerasBackend:
    """Keras 3's."""
    import keras

    return named(keras.backend.backend())
