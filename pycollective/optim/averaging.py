"""What optimizers of arrays have in common: parameters, and room in which their gradients are averaged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pycollective import checks
from pycollective.comm.world import given_or_world
from pycollective.optim.containers import Arrays, contained, copy_into, named, namespace
from pycollective.optim.fusion import Fused

if TYPE_CHECKING:
    from pycollective.comm.communicator import Communicator


class Averaging:
    """Parameters whose gradients are averaged over all ranks in one collective for each element type.

    Attributes:
        comm: whose ranks take part.
        params: as given.
        gradients: arrays in the shape and dtype of the parameters, in the same kind of container: room in the shared
            window. Gradients that are computed straight into it need no copy: `numpy.matmul(..., out=...)`.
    """

    def __init__(self, params: Arrays, comm: Communicator | None, topology: Any) -> None:
        """Collective.

        Raises:
            ValueError: an array given twice.
            TypeError: something that is no writable floating-point array.
            MismatchError: names, shapes or dtypes differ between ranks.
            TopologyError: no such topology, or it has no allreduce.
        """
        self.comm = given_or_world(comm)
        self._topology = topology
        self.params = params
        self._params = named(params)
        if len({id(p) for p in self._params.values()}) < len(self._params):
            raise ValueError("the same array is given as two parameters: it would take every step twice")
        for name, p in self._params.items():
            _check_writable(name, p)
        self.comm.explain("allreduce", 0, topology)  # an unknown topology is refused here, not in the first step
        self._fused = Fused(self._params, self.comm)
        self.gradients = contained(self._fused.views, params)

    def zero_grad(self) -> None:
        """Set `gradients` to zero, for code that adds to them."""
        for flat in self._fused.buffers:
            flat[...] = namespace(flat).zeros_like(flat)

    def broadcast_parameters(self, root: int = 0) -> None:
        """Collective: overwrite the parameters on every rank by the root's. Uses up `gradients` on the way."""
        self._fused.broadcast(self._params, checks.integer(root, "root", 0, self.comm.size - 1))

    def broadcast_optimizer_state(self, root: int = 0) -> None:
        """Collective: all of the optimizer's state but the parameters becomes the root's on every rank."""
        raise NotImplementedError

    def take_apart(self) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """The state in two parts, for a checkpoint.

        Returns:
            what JSON can express, and the arrays by what they are and by their parameters' names.
        """
        raise NotImplementedError

    def put_together(self, plain: dict[str, Any], arrays: dict[str, dict[str, Any]]) -> None:
        """Take over what `take_apart` has returned; as `load_state_dict`.

        Args:
            plain: what JSON can express, as `take_apart` returns it.
            arrays: the arrays, by what they are and by their parameters' names, as `take_apart` returns them.

        Raises:
            TypeError: something else.
        """
        raise NotImplementedError

    def _average(self, grads: Arrays | None) -> dict[str, Any]:
        """Collective: the mean over the ranks of each gradient, by name; `grads` as of `step`."""
        if grads is not None:
            copy_into(self._fused.views, named(grads, "grads"))
        self._fused.average(self._topology)
        return self._fused.views


@contextmanager
def only_parts() -> Iterator[None]:
    """Raises TypeError for what `take_apart` has not returned."""
    try:
        yield
    except Exception as error:
        raise TypeError(f"plain and arrays must be what take_apart() returns: {error}") from error


def _check_writable(name: str, p: Any) -> None:
    """Write an array into itself: libraries refuse in many ways, and better now than in the first step."""
    namespace(p)
    try:
        p[...] = p
    except Exception as error:
        raise TypeError(f"{name!r} cannot be written: {error}") from error
