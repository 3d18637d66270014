"""Collectives inside jax.jit, and data-parallel training in JAX: `import pycollective.jax`. See docs/jax.md.

The collectives have mpi4jax's interface; init, rank, size and the other basics are Horovod's.
"""

from __future__ import annotations

from pycollective.hvd import interface as _interface
from pycollective.hvd.interface import *  # noqa: F403
from pycollective.jax import collectives as _collectives
from pycollective.jax.collectives import *  # noqa: F403

__all__ = sorted({*_interface.__all__, *_collectives.__all__})
