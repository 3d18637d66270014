"""The interface of `horovod.ray`: ranks as actors of a Ray cluster. See docs/from-horovod.md. Needs the extra `ray`."""

from __future__ import annotations

try:
    import ray as _ray  # noqa: F401
except ImportError as error:
    raise ImportError("pycollective.ray needs Ray: pip install ray") from error

from pycollective.ray.elastic import ElasticRayExecutor
from pycollective.ray.runner import RayExecutor
from pycollective.ray.worker import BaseHorovodWorker

__all__ = ["BaseHorovodWorker", "ElasticRayExecutor", "RayExecutor"]
