"""DistributedOptimizer: any update rule on arrays, with gradients averaged over all ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pycollective import checks
from pycollective.optim.arrays import Arrays, namespace
from pycollective.optim.averaging import Averaging
from pycollective.optim.objects import broadcast_object
from pycollective.optim.rules import Rule, apply, complete

if TYPE_CHECKING:
    from pycollective.comm.communicator import Communicator


class DistributedOptimizer(Averaging):
    """An update rule on gradients averaged over all ranks: `lars`, `larc`, `lamb`, `novograd` or your own.

        optimizer = DistributedOptimizer(params, lars, lr=8.0, weight_decay=1e-4,
                                         overrides={"bias": {"weight_decay": 0.0, "adapt": False}})

    `step` averages like `DistributedSGD.step`, then applies the rule to each parameter: see
    `pycollective.optim.rules`. All ranks take the same step, with bitwise identical results.

    Attributes:
        comm, params, gradients: as in DistributedSGD.
        rule: the function.
        options: all of its options; may be changed between steps, to the same values on all ranks.
        overrides: parameter name -> its differing options.
        lr: options["lr"], for schedules.
    """

    def __init__(
        self,
        params: Arrays,
        rule: Rule,
        *,
        comm: Communicator | None = None,
        topology: Any = None,
        overrides: Mapping[str, Mapping[str, Any]] | None = None,
        **options: Any,
    ) -> None:
        """Collective.

        Args:
            params, comm, topology: as in DistributedSGD.
            rule: a function of `pycollective.optim.rules`, or one with the same interface.
            overrides: parameter name -> differing options; in a list the names are "0", "1", ...
            options: those of the rule, by keyword; lr has no default.

        Raises:
            ValueError, TypeError: options are invalid for the rule, or overrides name no parameter.
            Exception: see DistributedSGD.
        """
        self.rule = rule
        self.options = complete(rule, options)
        self.overrides = _overrides({} if overrides is None else overrides)
        for changed in self.overrides.values():
            complete(rule, {**options, **changed})
        super().__init__(params, comm, topology)
        if odd := self.overrides.keys() - self._params.keys():
            raise ValueError(f"there are overrides, but no parameters, called {', '.join(sorted(odd))}")
        self._state: dict[str, dict[str, Any]] = {name: {} for name in self._params}

    @property
    def lr(self) -> float:
        """options["lr"], the rate of the next step."""
        return float(self.options["lr"])

    @lr.setter
    def lr(self, value: float) -> None:
        self.options["lr"] = checks.number(value, "lr", 0, finite=False)

    def step(self, grads: Arrays | None = None) -> None:
        """Collective: average the gradients and update the parameters.

        Args:
            grads: this rank's gradients, in the container, shapes and dtypes of the parameters; None if they have been
                written into `gradients`, which has the averages afterwards.

        Raises:
            ValueError: names or shapes differ from the parameters'; an option is out of range.
            TypeError: a dtype differs.
        """
        options = complete(self.rule, self.options)
        for name, g in self._average(grads).items():
            apply(self.rule, self._params[name], g, self._state[name], {**options, **self.overrides.get(name, {})})

    def broadcast_optimizer_state(self, root: int = 0) -> None:
        """Collective: overwrite options, overrides and the state of all parameters with the root's on every rank."""
        plain, arrays = self.take_apart()
        kinds = [(slot, name, _kind(x)) for slot, values in arrays.items() for name, x in values.items()]
        plain, kinds = broadcast_object((plain, kinds), root, self.comm)
        received: dict[str, dict[str, Any]] = {}
        for slot, name, kind in kinds:
            mine = arrays[slot][name] if self.comm.rank == root else self._room(name, kind)
            received.setdefault(slot, {})[name] = self.comm.broadcast(mine, root)
        self.put_together(plain, received)

    def state_dict(self) -> dict[str, Any]:
        """Everything except the parameters; steps do not modify it.

        Returns:
            rule: its name; options, overrides: dicts; state: parameter name -> the rule's state for it.
        """
        return {
            "rule": self.rule.__name__,
            "options": dict(self.options),
            "overrides": {name: dict(changed) for name, changed in self.overrides.items()},
            "state": {name: dict(own) for name, own in self._state.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load `state`, a result of `state_dict`; if only one rank does, call `broadcast_optimizer_state` next.

        Raises:
            ValueError, TypeError: it belongs to another rule, or does not match these parameters; nothing has changed.
            KeyError: an entry is missing.
        """
        checks.mapping(state, "state", ("rule", "options", "overrides", "state"))
        if state["rule"] != self.rule.__name__:
            raise ValueError(f"this is a state of {state['rule']}, not of {self.rule.__name__}")
        options = complete(self.rule, checks.mapping(state["options"], "options"))
        overrides = _overrides(state["overrides"])
        for changed in overrides.values():
            complete(self.rule, {**options, **changed})
        given = checks.mapping(state["state"], "state['state']")
        kept = {name: dict(checks.mapping(own, f"the state of {name!r}")) for name, own in given.items()}
        if kept.keys() != self._params.keys() or overrides.keys() - self._params.keys():
            raise ValueError(f"this is a state of parameters called {', '.join(kept)}, not {', '.join(self._params)}")
        for name, own in kept.items():
            for slot, value in own.items():
                if tuple(getattr(value, "shape", ())) not in ((), tuple(self._params[name].shape)):
                    raise ValueError(f"{slot} of {name!r} has shape {tuple(value.shape)}")
        self.options, self.overrides, self._state = options, overrides, kept

    def take_apart(self) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        plain = self.state_dict()
        arrays: dict[str, dict[str, Any]] = {}
        for name, own in plain["state"].items():
            xp = namespace(self._params[name])
            for slot in [slot for slot, value in own.items() if hasattr(value, "dtype")]:
                arrays.setdefault(slot, {})[name] = xp.asarray(own.pop(slot))
        return plain, arrays

    def _joined(self, plain: dict[str, Any], arrays: dict[str, dict[str, Any]]) -> dict[str, Any]:
        kept = {name: dict(own) for name, own in plain["state"].items()}
        for slot, values in arrays.items():
            for name, array in values.items():
                kept[name][slot] = array
        return {**plain, "state": kept}

    def _room(self, name: str, kind: tuple[tuple[int, ...], str]) -> Any:
        """An array of this kind, shaped like the parameter or with no dimensions, on the parameter's device."""
        shape, dtype = kind
        xp = namespace(self._params[name])
        zeros = xp.zeros_like(self._params[name])
        return xp.asarray(zeros if shape == tuple(zeros.shape) else xp.sum(zeros), dtype=getattr(xp, dtype))


def _overrides(given: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    changes = checks.mapping(given, "overrides")
    return {name: dict(checks.mapping(changed, f"overrides[{name!r}]")) for name, changed in changes.items()}


def _kind(array: Any) -> tuple[tuple[int, ...], str]:
    return tuple(array.shape), str(array.dtype).rpartition(".")[2]
