"""Acts on another package's module once it has been imported, without importing it."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def when_imported(name: str, act: Callable[[Any], None]) -> None:
    """Call act(module): now if the module is imported already, else after its import."""
    if name in sys.modules:
        act(importlib.import_module(name))  # another thread may not have completed it
    else:
        sys.meta_path.insert(0, _ActingLoader(name, act))


class _ActingLoader(MetaPathFinder, Loader):
    """Finds one module, once, lets the module's own loader load it, then acts on it."""

    def __init__(self, name: str, act: Callable[[Any], None]) -> None:
        self._name, self._act = name, act

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            self._loader, spec.loader = spec.loader, self
        return spec

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._act(module)
