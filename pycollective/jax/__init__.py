"""Collectives inside jax.jit, and data-parallel training in JAX: `import pycollective.jax`. See docs/jax.md.

The collectives have mpi4jax's interface; init, rank, size and the other basics are Horovod's.
"""

from __future__ import annotations

from pycollective.hvd import interface as _interface
from pycollective.hvd.interface import *  # noqa: F403
from pycollective.hvd.objects import allgather_object, broadcast_object
from pycollective.jax import collectives as _collectives
from pycollective.jax import training as _training
from pycollective.jax import trees as _trees
from pycollective.jax.collectives import *  # type: ignore[assignment]  # noqa: F403
from pycollective.jax.compression import Compression
from pycollective.jax.training import *  # noqa: F403
from pycollective.jax.trees import *  # noqa: F403

__all__ = [
    *_interface.__all__,
    *_collectives.__all__,
    *_training.__all__,
    *_trees.__all__,
    "Compression",
    "allgather_object",
    "broadcast_object",
]
