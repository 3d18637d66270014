"""Training with Gluon that survives lost ranks; horovod.mxnet has none. `run` is that of all frameworks."""

from __future__ import annotations

from typing import Any

import mxnet as mx

from pycollective import checks
from pycollective.hvd.elastic.running import run as run
from pycollective.hvd.elastic.state import ObjectState
from pycollective.hvd.objects import broadcast_object
from pycollective.mxnet.functions import broadcast_parameters
from pycollective.mxnet.optimizer import DistributedTrainer

__all__ = ["GluonState", "run"]


class GluonState(ObjectState):
    """The state of a training: a Block, a DistributedTrainer and plain values, each an attribute.

    The Block and the trainer stay the same objects. Parameters without values yet, whose initialization is deferred,
    are not saved.
    """

    def __init__(self, block: Any, trainer: Any = None, **values: Any) -> None:
        """
        Args:
            block: an mx.gluon.Block.
            trainer: of its parameters; None: the state has none.
            values: plain values, see ObjectState.
        """
        self.block = checks.instance(block, "block", mx.gluon.Block, "an mx.gluon.Block")
        if trainer is not None:
            checks.instance(trainer, "trainer", DistributedTrainer, "a DistributedTrainer or None")
        self.trainer = trainer
        super().__init__(**values)
        self._save_parts()

    def _save_parts(self) -> None:
        ready = {name: p for name, p in self.block.collect_params().items() if _has_values(p)}
        self._parameters = {name: p.list_data()[0].asnumpy() for name, p in ready.items()}
        is_ready = self.trainer is not None and all(map(_has_values, self.block.collect_params().values()))
        self._trained = self.trainer.states() if is_ready else b""

    def save(self) -> None:
        self._save_parts()
        super().save()

    def restore(self) -> None:
        parameters = self.block.collect_params()
        for name, values in self._parameters.items():
            parameters[name].set_data(mx.nd.array(values, dtype=values.dtype))
        if self._trained:
            self.trainer.set_states(self._trained)
        super().restore()

    def kept(self) -> Any:
        return {**super().kept(), "parameters": self._parameters, "trainer": self._trained}

    def take_kept(self, content: Any) -> None:
        self._parameters, self._trained = content["parameters"], content["trainer"]
        super().take_kept(content)

    def sync(self) -> None:
        broadcast_parameters(self.block.collect_params(), root_rank=0)
        self._save_parts()
        self._trained = broadcast_object(self._trained)
        if self._trained:
            self.trainer.set_states(self._trained)
        super().sync()


def _has_values(parameter: Any) -> bool:
    return parameter._data is not None  # noqa: SLF001 (list_data() raises otherwise)
