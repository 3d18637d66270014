"""A torch.distributed backend: `import pycollective.torch`, then `init_process_group("pycollective")`.

Importing this package registers the backend with torch. Tensors are in CPU memory or on CUDA devices.
"""

from __future__ import annotations

from pycollective.torch.distributed.backend import register
from pycollective.torch.distributed.group import ProcessGroup
from pycollective.torch.distributed.options import Options

__all__ = ["Options", "ProcessGroup", "register"]

register()
