"""The state of a training in torch: models, optimizers, samplers and plain values."""

from __future__ import annotations

import copy
from typing import Any, BinaryIO

import torch

from pycollective.hvd.elastic.state import ObjectState as ObjectState
from pycollective.hvd.elastic.state import State as State
from pycollective.hvd.elastic.state import require_names
from pycollective.hvd.objects import broadcast_object
from pycollective.torch.elastic.sampler import ElasticSampler
from pycollective.torch.functions import broadcast_optimizer_state, broadcast_parameters
from pycollective.torch.hvd.gradient_reducer import GradientReducer


class StateHandler:
    """How one object of a TorchState is saved, restored and synchronized: through its state_dict."""

    def __init__(self, value: Any) -> None:
        self.set_value(value)

    def set_value(self, value: Any) -> None:
        """Replace the object."""
        self.value = value
        self.save()

    def save(self) -> None:
        """Save a copy."""
        self.saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        """Restore the saved copy."""
        self.value.load_state_dict(copy.deepcopy(self.saved))  # optimizers keep and modify what they load

    def sync(self) -> None:
        """Collective: load rank 0's state."""
        self.value.load_state_dict(broadcast_object(self.value.state_dict()))

    def reset(self) -> None:
        """Called when the set of ranks has changed."""


class ModelStateHandler(StateHandler):
    """Parameters and buffers of an nn.Module."""

    def sync(self) -> None:
        broadcast_parameters(self.value.state_dict(), root_rank=0)


class OptimizerStateHandler(StateHandler):
    """State and options of an optimizer."""

    def sync(self) -> None:
        broadcast_optimizer_state(self.value, root_rank=0)

    def reset(self) -> None:
        if isinstance(self.value, GradientReducer):
            self.value.reset_reduction()  # pending reductions will never complete


class SamplerStateHandler(StateHandler):
    """The position of an ElasticSampler in its epoch."""

    def reset(self) -> None:
        self.value.reset()


_handlers: list[tuple[type, type[StateHandler]]] = [
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (torch.optim.lr_scheduler.LRScheduler, StateHandler),
    (ElasticSampler, SamplerStateHandler),
]


def get_handler_registry() -> list[tuple[type, type[StateHandler]]]:
    """Types and their handlers; the first match is used."""
    return _handlers


def set_handler_registry(registry: list[tuple[type, type[StateHandler]]]) -> None:
    """Set the handlers of TorchStates created from now on."""
    global _handlers
    _handlers = registry


class TorchState(ObjectState):
    """The state of a training in torch, each part an attribute.

    Models, optimizers, learning rate schedulers and ElasticSamplers are handled through their state_dict: the objects
    stay the same. Everything else is a plain value, see ObjectState.
    """

    _handlers: dict[str, StateHandler]

    def __init__(self, model: Any = None, optimizer: Any = None, **kwargs: Any) -> None:
        """Args: model, optimizer: like `kwargs` of these names; kwargs: the parts."""
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
        require_names("parts", self._handlers, content)
        for name, handler in self._handlers.items():
            handler.saved = content["parts"][name]
        super().take_kept(content)

    def write(self, content: Any, file: BinaryIO) -> None:
        torch.save(content, file)

    def read(self, file: BinaryIO) -> Any:
        return torch.load(file, map_location="cpu", weights_only=False)  # values may be of any class

    def sync(self) -> None:
        for handler in self._handlers.values():
            handler.sync()
            handler.save()
        super().sync()

    def reset(self) -> None:
        for handler in self._handlers.values():
            handler.reset()
