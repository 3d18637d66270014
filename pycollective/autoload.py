"""The entry point in the group "torch.backends": scripts that never import pycollective can name its backend.

torch calls `register` at the end of every `import torch` (unless TORCH_DEVICE_BACKEND_AUTOLOAD=0). It registers a name
and loads nothing: the backend is imported when a process group with it is created.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

BACKEND = SCHEME = "pycollective"


def register() -> None:
    """Register the backend and the URL `pycollective://` with torch. Never raises; may be called twice.

    `env://` remains torch's own, also for this backend, until `pycollective.torch` is imported.
    """
    with contextlib.suppress(Exception):  # an error would break every import of torch
        import torch.distributed as dist

        if dist.is_available() and BACKEND not in dist.Backend.backend_list:
            dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=["cpu", "cuda"])
            dist.distributed_c10d.register_rendezvous_handler(SCHEME, _meet)


def _create(made_by_torch: Any, options: Any = None) -> Any:
    from pycollective.torch.distributed.backend import create

    return create(made_by_torch, options)


def _meet(url: str, *args: Any, **kwargs: Any) -> Iterator[tuple[Any, int, int]]:
    from pycollective.torch.distributed.bootstrap import rendezvous

    return rendezvous.meet(url, *args, **kwargs)
