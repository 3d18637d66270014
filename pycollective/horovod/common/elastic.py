"""`horovod.common.elastic`: for states other than TorchState."""

from __future__ import annotations

from pycollective.hvd.elastic.running import run_fn
from pycollective.hvd.elastic.state import ObjectState, State

__all__ = ["ObjectState", "State", "run_fn"]
