"""The common base of optimizers of arrays: parameters, and buffers in which their gradients are averaged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pycollective import checks
from pycollective.comm.world import given_or_world
from pycollective.optim.arrays import Arrays, contained, copy_into, named, namespace
from pycollective.optim.fusion import Fused

if TYPE_CHECKING:
    from pycollective.comm.communicator import Communicator


class Averaging:
    """Parameters whose gradients are averaged over all ranks in one collective for each element type.

    Attributes:
        comm: of the participating ranks.
        params: as passed.
        gradients: arrays in the shape and dtype of the parameters, in the same kind of container: buffers in the shared
            window. Gradients computed directly into them need no copy: `numpy.matmul(..., out=...)`.
    """

    def __init__(self, params: Arrays, comm: Communicator | None, topology: Any) -> None:
        """Collective.

        Raises:
            ValueError: an array was passed twice.
            TypeError: not a writable floating-point array.
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
        self.comm.explain("allreduce", 0, topology)  # reject unknown topologies here, not in the first step
        self._fused = Fused(self._params, self.comm)
        self.gradients = contained(self._fused.views, params)

    def zero_grad(self) -> None:
        """Set `gradients` to zero, for code that adds to them."""
        for flat in self._fused.buffers:
            flat[...] = namespace(flat).zeros_like(flat)

    def broadcast_parameters(self, root: int = 0) -> None:
        """Collective: overwrite the parameters on every rank with the root's. Overwrites `gradients`."""
        self._fused.broadcast(self._params, checks.integer(root, "root", 0, self.comm.size - 1))

    def broadcast_optimizer_state(self, root: int = 0) -> None:
        """Collective: overwrite the optimizer's state, except the parameters, with the root's on every rank."""
        raise NotImplementedError

    def take_apart(self) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """The state in two parts, for a checkpoint.

        Returns:
            a JSON-serializable part, and the arrays by kind and by parameter name.
        """
        raise NotImplementedError

    def put_together(self, plain: dict[str, Any], arrays: dict[str, dict[str, Any]]) -> None:
        """Restore what `take_apart` has returned; like `load_state_dict`.

        Args:
            plain: the JSON-serializable part returned by `take_apart`.
            arrays: the arrays, by kind and by parameter name, as returned by `take_apart`.

        Raises:
            TypeError: anything else.
        """
        try:
            state = self._joined(plain, arrays)
        except Exception as error:
            raise TypeError(f"plain and arrays must be what take_apart() returns: {error}") from error
        self.load_state_dict(state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load `state`, a result of `state_dict`; if only one rank does, call `broadcast_optimizer_state` next."""
        raise NotImplementedError

    def _joined(self, plain: dict[str, Any], arrays: dict[str, dict[str, Any]]) -> dict[str, Any]:
        """The result of `state_dict` of which `take_apart` has returned these parts."""
        raise NotImplementedError

    def _average(self, grads: Arrays | None) -> dict[str, Any]:
        """Collective: the mean over the ranks of each gradient, by name; `grads` as in `step`."""
        if grads is not None:
            copy_into(self._fused.views, named(grads, "grads"))
        self._fused.average(self._topology)
        return self._fused.views


def _check_writable(name: str, p: Any) -> None:
    """Write an array into itself, to detect read-only arrays now instead of in the first step."""
    namespace(p)
    try:
        p[...] = p
    except Exception as error:
        raise TypeError(f"{name!r} cannot be written: {error}") from error
