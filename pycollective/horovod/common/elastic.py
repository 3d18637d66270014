"""`horovod.common.elastic`: for states of other kinds than TorchState."""

from __future__ import annotations

from pycollective.torch.elastic.running import run_fn
from pycollective.torch.elastic.state import ObjectState, State

__all__ = ["ObjectState", "State", "run_fn"]
