"""Provides `import horovod`, so that scripts written for Horovod run unchanged.

    python -m pycollective.horovod script.py arguments      or, in the script: `pycollective.horovod.install()`
    python -m pycollective.horovod -np 4 script.py          the same on four ranks, with horovodrun's options
    python -m pycollective.horovod install                  in every program of this environment, until `uninstall`
    python -m pycollective.horovod -np 4 --min-np 2 ...     elastic jobs

`horovod.torch` and its modules are `pycollective.torch` and its modules themselves; likewise `horovod.tensorflow`,
`horovod.tensorflow.keras`, `horovod.keras`, `horovod.mxnet` and `horovod.ray`. `horovod.common` and its modules are in
pycollective/horovod/common; `horovod.run` starts ranks. Nothing else is provided, e.g. no horovod.spark.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from pycollective.horovod.launching import run

__all__ = ["PATH", "__version__", "install", "run"]
__version__ = "0.28.1"
"""The version of Horovod whose interface this is."""
PATH = str(Path(__file__).parent / "path")
"""A folder for sys.path in which Python finds `horovod`."""
_HOMES = {
    "horovod.common.basics": "pycollective.hvd.horovod_basics",
    "horovod.common.exceptions": "pycollective.hvd.exceptions",
    "horovod.common": "pycollective.horovod.common",
    "horovod.runner.common.util": "pycollective.horovod.common",
    "horovod.runner.common": "pycollective.horovod.common",
    "horovod.runner.util.threads": "pycollective.horovod.common.threads",
    "horovod.runner.util": "pycollective.horovod.common",
    "horovod.runner": "pycollective.horovod.launching",
    "horovod.keras": "pycollective.keras",
    "horovod.mxnet": "pycollective.mxnet",
    "horovod.ray": "pycollective.ray",
    "horovod.tensorflow": "pycollective.tensorflow",
    "horovod.torch": "pycollective.torch",
}
"""Modules, with everything below them, and their replacements; the first match is used."""


def install() -> None:
    """Make `import horovod` and its submodules resolve to this package, even if Horovod is installed.

    Processes started by multiprocessing (the workers of a DataLoader) inherit it. May be called twice.

    Raises:
        ImportError: Horovod itself is already imported.
    """
    theirs = sys.modules.get("horovod")
    if theirs is not None and theirs is not sys.modules[__name__]:
        raise ImportError(
            f"horovod is imported already, from {theirs.__file__}: call pycollective.horovod.install() first"
        )
    sys.modules["horovod"] = sys.modules[__name__]
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    if PATH not in sys.path:
        sys.path.insert(1, PATH)  # 0 is the script's own folder


def is_installed() -> bool:
    """Return whether `install` has been called, or horovod was imported from PATH."""
    return sys.modules.get("horovod") is sys.modules[__name__]


class _Finder(MetaPathFinder, Loader):
    """Loads modules under another name: the same objects."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        home = _home(fullname)
        if home is None or importlib.util.find_spec(home) is None:
            return None
        return ModuleSpec(fullname, self, origin=home, is_package=True)

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = importlib.import_module(_home(module.__name__) or "")


def _home(name: str) -> str | None:
    for theirs, ours in _HOMES.items():
        if name == theirs or name.startswith(f"{theirs}."):
            return ours + name[len(theirs) :]
    return None
