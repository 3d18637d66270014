"""Training that survives lost ranks, like `horovod.torch.elastic`: state that is committed and restored, and `run`."""

from __future__ import annotations

from pycollective.hvd.elastic.running import run
from pycollective.torch.elastic.sampler import ElasticSampler
from pycollective.torch.elastic.state import TorchState

__all__ = ["ElasticSampler", "TorchState", "run"]
