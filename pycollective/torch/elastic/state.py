"""What training consists of: models, optimizers, samplers and plain values, committed, restored and made equal."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch

from pycollective.torch.arguments import Max
from pycollective.torch.elastic import kept
from pycollective.torch.elastic.sampler import ElasticSampler
from pycollective.torch.exceptions import HostsUpdatedInterrupt
from pycollective.torch.functions import broadcast_object, broadcast_optimizer_state, broadcast_parameters
from pycollective.torch.mpi_ops import allreduce, rank
from pycollective.torch.reducing import Reducing

REMOVED, ADDED = 1, 2
"""What happened to hosts; bits."""


class State:
    """What `elastic.run` keeps equal on all ranks. Subclasses say how: save, restore, sync and perhaps reset."""

    def __init__(self, bcast_object: Callable[..., Any] = broadcast_object, get_rank: Callable[[], int] = rank) -> None:
        """Args: bcast_object: gives the object of rank 0 to all; get_rank: this rank."""
        self._bcast_object, self._rank = bcast_object, get_rank
        self._reset_callbacks: list[Callable[[], Any]] = []
        self._told: list[tuple[float, int]] = []
        self._newest = 0.0

    def register_reset_callbacks(self, callbacks: Sequence[Callable[[], Any]]) -> None:
        """Functions to call whenever the ranks have changed, before the state is synchronised: to scale the step size
        with size(), say."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Called by `elastic.run` when the ranks have started anew."""
        self._told.clear()
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Tell this rank that hosts were removed (1) or added (2), or both (3), at a time in seconds.

        At their next commit all ranks raise HostsUpdatedInterrupt. May be called from any thread.
        """
        self._told.append((float(timestamp), int(update_res)))

    def commit(self) -> None:
        """Collective: what the state is now is what a restore goes back to; then check_host_updates().

        Where PYCOLLECTIVE_ELASTIC_FILE names a file, rank 0 leaves it there, too, for a job that is started anew.
        """
        self.save()
        kept.keep(self)
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Collective: raises HostsUpdatedInterrupt on all ranks if one was told since the last check."""
        told, self._told = self._told, []
        news = [(when, what) for when, what in told if when > self._newest]
        happened = [max([when for when, _ in news], default=0.0)]
        happened += [float(any(what & bit for _, what in news)) for bit in (REMOVED, ADDED)]
        newest, removed, added = allreduce(torch.tensor(happened, dtype=torch.float64), op=Max).tolist()
        if newest > self._newest:
            self._newest = newest
            raise HostsUpdatedInterrupt(skip_sync=bool(removed and not added))

    def save(self) -> None:
        """Keep a copy."""
        raise NotImplementedError

    def restore(self) -> None:
        """Go back to the copy. Not collective."""
        raise NotImplementedError

    def sync(self) -> None:
        """Collective: everything as on rank 0; this is also what a restore goes back to."""
        raise NotImplementedError

    def reset(self) -> None:
        """Called when the ranks have changed, before the reset callbacks."""

    def kept(self) -> Any:
        """The copy, as something that torch.save takes; None: it cannot be kept in a file."""

    def take_kept(self, content: Any) -> None:
        """Make what `kept` gave the copy, and go back to it."""
        raise NotImplementedError


class ObjectState(State):
    """A state of plain values, each an attribute. They are copied deeply, and sent by way of pickle."""

    def __init__(
        self, bcast_object: Callable[..., Any] = broadcast_object, get_rank: Callable[[], int] = rank, **kwargs: Any
    ) -> None:
        super().__init__(bcast_object, get_rank)
        self._saved_state = copy.deepcopy(kwargs)
        for name, value in kwargs.items():
            setattr(self, name, value)

    def save(self) -> None:
        self._saved_state = {name: copy.deepcopy(getattr(self, name)) for name in self._saved_state}

    def restore(self) -> None:
        for name, value in self._saved_state.items():
            setattr(self, name, copy.deepcopy(value))

    def kept(self) -> Any:
        return {"values": self._saved_state}

    def take_kept(self, content: Any) -> None:
        _same_names("values", self._saved_state, content)
        self._saved_state = content["values"]
        self.restore()

    def sync(self) -> None:
        if self._saved_state:
            now = {name: getattr(self, name) for name in self._saved_state}
            for name, value in self._bcast_object(now).items():
                setattr(self, name, value)
        ObjectState.save(self)


def _same_names(what: str, mine: dict[str, Any], content: dict[str, Any]) -> None:
    if set(mine) != set(content.get(what, {})):
        raise ValueError(f"the file has {what} {sorted(content.get(what, {}))}, the state {sorted(mine)}")


class StateHandler:
    """How one object of a TorchState is saved, restored and made equal: by its state_dict."""

    def __init__(self, value: Any) -> None:
        self.set_value(value)

    def set_value(self, value: Any) -> None:
        """Another object in the place of the present one."""
        self.value = value
        self.save()

    def save(self) -> None:
        """Keep a copy."""
        self.saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        """Go back to the copy."""
        self.value.load_state_dict(copy.deepcopy(self.saved))  # an optimizer goes on to change what it was given

    def sync(self) -> None:
        """Collective: as on rank 0."""
        self.value.load_state_dict(broadcast_object(self.value.state_dict()))

    def reset(self) -> None:
        """The ranks have changed."""


class ModelStateHandler(StateHandler):
    """Parameters and buffers of an nn.Module."""

    def sync(self) -> None:
        broadcast_parameters(self.value.state_dict(), root_rank=0)


class OptimizerStateHandler(StateHandler):
    """State and options of an optimizer."""

    def sync(self) -> None:
        broadcast_optimizer_state(self.value, root_rank=0)

    def reset(self) -> None:
        if isinstance(self.value, Reducing):
            self.value.reset_reduction()  # what was being reduced never will be


class SamplerStateHandler(StateHandler):
    """Where an ElasticSampler is in its epoch."""

    def reset(self) -> None:
        self.value.reset()


_handlers: list[tuple[type, type[StateHandler]]] = [
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (torch.optim.lr_scheduler.LRScheduler, StateHandler),
    (ElasticSampler, SamplerStateHandler),
]


def get_handler_registry() -> list[tuple[type, type[StateHandler]]]:
    """Types and their handlers; the first that fits is taken."""
    return _handlers


def set_handler_registry(registry: list[tuple[type, type[StateHandler]]]) -> None:
    """Other handlers for TorchStates to come."""
    global _handlers
    _handlers = registry


class TorchState(ObjectState):
    """The state of a training in torch, each part an attribute.

    Models, optimizers, learning rate schedulers and ElasticSamplers are handled by their state_dict: they stay the
    same objects. Everything else is a plain value, see ObjectState.
    """

    _handlers: dict[str, StateHandler]

    def __init__(self, model: Any = None, optimizer: Any = None, **kwargs: Any) -> None:
        """Args: model, optimizer: as `kwargs` of these names; kwargs: the parts."""
        self.__dict__["_handlers"] = {}
        plain = {}
        for name, value in {**kwargs, "model": model, "optimizer": optimizer}.items():
            handler = next((made for kind, made in _handlers if isinstance(value, kind)), None)
            if handler is None:
                plain[name] = value
            else:
                setattr(self, name, value)
                self._handlers[name] = handler(value)
        super().__init__(**plain)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._handlers:
            self._handlers[name].set_value(value)
        super().__setattr__(name, value)

    def save(self) -> None:
        for handler in self._handlers.values():
            handler.save()
        super().save()

    def restore(self) -> None:
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def kept(self) -> Any:
        return {**super().kept(), "parts": {name: handler.saved for name, handler in self._handlers.items()}}

    def take_kept(self, content: Any) -> None:
        _same_names("parts", self._handlers, content)
        for name, handler in self._handlers.items():
            handler.saved = content["parts"][name]
        super().take_kept(content)

    def sync(self) -> None:
        for handler in self._handlers.values():
            handler.sync()
            handler.save()
        super().sync()

    def reset(self) -> None:
        for handler in self._handlers.values():
            handler.reset()
