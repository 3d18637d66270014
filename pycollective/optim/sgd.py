"""Data-parallel stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pycollective import checks
from pycollective.optim.arrays import Arrays, contained, copy_into, named, zeros
from pycollective.optim.averaging import Averaging
from pycollective.optim.objects import broadcast_object

if TYPE_CHECKING:
    from pycollective.comm.communicator import Communicator


class DistributedSGD(Averaging):
    """SGD with momentum and weight decay on gradients averaged over all ranks.

    Each rank computes the gradients g of its own part of the data; `step` averages them and then updates the parameters
    p identically on every rank, with the velocity v, which starts at zero:

        g = mean of g over the ranks + weight_decay * p
        v = momentum * v + g
        p = p - lr * v                        nesterov: p - lr * (g + momentum * v); without momentum: p - lr * g

    These are the formulas of torch.optim.SGD with dampening=0, see
    https://docs.pytorch.org/docs/stable/generated/torch.optim.SGD.html; all computation is in the parameters' dtype.
    The gradients are averaged in one collective for each element type, in a shared window. With a topology that reduces
    in rank order (`direct`, the default, and `star`) the result is bitwise identical however they are fused.

    The mean over the ranks is the mean over all data if every rank computes on the same number of rows, as with
    `partition(..., drop_last=True)`.

    Attributes:
        comm: of the participating ranks.
        params: as passed; `step` writes into these arrays.
        gradients: arrays in the shape and dtype of the parameters, in the same kind of container: buffers in the shared
            window. Gradients computed directly into them need no copy: `numpy.matmul(..., out=...)`.
        lr, momentum, weight_decay, nesterov: may be set between steps, to the same value on all ranks.
    """

    def __init__(
        self,
        params: Arrays,
        lr: float,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        comm: Communicator | None = None,
        topology: Any = None,
        *,
        nesterov: bool = False,
    ) -> None:
        """Collective.

        Args:
            params: dict or list of writable floating-point arrays, of any shapes and of one or several dtypes: NumPy's
                or arrays of another library that follows the array API standard, in CPU or GPU memory (cupy, torch);
                the same on all ranks.
            lr: step size, at least 0.
            momentum: factor on the velocity, at least 0.
            weight_decay: factor of the L2 penalty, at least 0.
            comm: of the participating ranks; by default that of `pycollective.init`.
            topology: for averaging the gradients, as for `Communicator.allreduce`.
            nesterov: Nesterov momentum; needs momentum.

        Raises:
            ValueError: a negative number, nesterov without momentum, an array passed twice.
            TypeError: not a writable floating-point array in the memory of CPUs or CUDA GPUs.
            MismatchError: names, shapes or dtypes differ between ranks.
            TopologyError: no such topology, or it has no allreduce.
        """
        self._set(lr=lr, momentum=momentum, weight_decay=weight_decay, nesterov=nesterov)
        super().__init__(params, comm, topology)
        self._velocity: dict[str, Any] = {}

    def step(self, grads: Arrays | None = None) -> None:
        """Collective: average the gradients and update the parameters.

        Args:
            grads: this rank's gradients, in the container, shapes and dtypes of the parameters; None if they have been
                written into `gradients`, which has the averages afterwards.

        Raises:
            ValueError: names or shapes differ from the parameters'.
            TypeError: a dtype differs.
        """
        self._update(self._average(grads))

    def _update(self, gradients: Mapping[str, Any]) -> None:
        """Step on gradients, by name, without communication."""
        lr, momentum, weight_decay = float(self.lr), float(self.momentum), float(self.weight_decay)
        if momentum:
            self._start_velocity()
        for name, p in self._params.items():
            g = gradients[name]
            if weight_decay:
                g = g + weight_decay * p
            if momentum:
                v = self._velocity[name]
                v *= momentum
                v += g
                g = g + momentum * v if self.nesterov else v
            p -= lr * g

    def broadcast_optimizer_state(self, root: int = 0) -> None:
        """Collective: overwrite lr, momentum, weight_decay, nesterov and the velocity with the root's on every rank.

        Overwrites `gradients`.
        """
        numbers, moving = broadcast_object((self._numbers(), bool(self._velocity)), root, self.comm)
        self._set(**numbers)
        if moving:
            self._start_velocity()
            self._fused.broadcast(self._velocity, root)
        else:
            self._velocity = {}

    def state_dict(self) -> dict[str, Any]:
        """Copies of everything except the parameters.

        Returns:
            lr, momentum, weight_decay: float; nesterov: bool; velocity: arrays in the container of the parameters,
            or None before the first step with momentum.
        """
        copies = zeros(self._velocity)
        copy_into(copies, self._velocity)
        return {**self._numbers(), "velocity": contained(copies, self.params) if copies else None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load `state`, a result of `state_dict`; if only one rank does, call `broadcast_optimizer_state` next.

        Raises:
            ValueError, TypeError: it does not match these parameters; nothing has changed.
            KeyError: an entry is missing.
        """
        checks.mapping(state, "state", (*self._numbers(), "velocity"))
        numbers = {name: state[name] for name in self._numbers()}
        velocity = zeros(self._params) if state["velocity"] is not None else {}
        if velocity:
            copy_into(velocity, named(state["velocity"], "velocity"))
        self._set(**numbers)
        self._velocity = velocity

    def take_apart(self) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        state = self.state_dict()
        velocity = state.pop("velocity")
        return state, {} if velocity is None else {"velocity": named(velocity)}

    def _joined(self, plain: dict[str, Any], arrays: dict[str, dict[str, Any]]) -> dict[str, Any]:
        return {**plain, "velocity": contained(arrays["velocity"], self.params) if arrays else None}

    def _numbers(self) -> dict[str, Any]:
        return {
            "lr": float(self.lr),
            "momentum": float(self.momentum),
            "weight_decay": float(self.weight_decay),
            "nesterov": bool(self.nesterov),
        }

    def _set(self, lr: float, momentum: float, weight_decay: float, nesterov: bool) -> None:
        for what, value in (("lr", lr), ("momentum", momentum), ("weight_decay", weight_decay)):
            checks.number(value, what, 0, finite=False)
        if checks.flag(nesterov, "nesterov") and not momentum:
            raise ValueError("nesterov needs momentum")
        self.lr, self.momentum, self.weight_decay, self.nesterov = lr, momentum, weight_decay, nesterov

    def _start_velocity(self) -> None:
        if not self._velocity:
            self._velocity = zeros(self._params)
