"""Makes torch.compile skip this package's functions, as it skips torch's own.

Otherwise it would compile what C++ calls back within a compiled function (DistributedDataParallel calls methods of a
process group there, and a backward pass calls gradient hooks), and fail.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_RULES = "torch._dynamo.trace_rules"


def leave_alone() -> None:
    """Register this package with torch.compile, now or once it is imported: its import takes longer than this one's."""
    rules = sys.modules.get(_RULES)
    if rules is not None:
        rules.add(__package__.partition(".")[0])
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _RULES:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Registering(spec.loader)
        return spec


class _Registering(Loader):
    """Loads the module as `loader` does, then registers this package with it."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = module.__loader__ = self.loader
        self.loader.exec_module(module)
        leave_alone()
