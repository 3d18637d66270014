"""The GPU side over the emulated runtime: see emulation.py. Tests marked `gpu` use the real one and need a device."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gpu import emulation
from launch import Launched, launch

TESTS = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def built() -> Path:
    """The emulated extension's file."""
    if emulation.why_not():
        pytest.skip(emulation.why_not())
    return emulation.build()


@pytest.fixture
def cuda(built: Path) -> Iterator[ModuleType]:
    """The emulated `pycollective._cuda`, for as long as a test runs."""
    import pycollective

    before = sys.modules.get(emulation.NAME)
    attribute = getattr(pycollective, "_cuda", None)
    yield _loaded(built)
    sys.modules.pop(emulation.NAME, None)
    if before is not None:
        sys.modules[emulation.NAME] = before
    if attribute is not None:
        pycollective._cuda = attribute  # type: ignore[attr-defined]
    elif hasattr(pycollective, "_cuda"):
        del pycollective._cuda


_module: list[ModuleType] = []


def _loaded(file: Path) -> ModuleType:
    """Loaded once in a process: an extension's types are registered once."""
    import pycollective

    if not _module:
        _module.append(emulation.load(file))
    sys.modules[emulation.NAME] = _module[0]
    pycollective._cuda = _module[0]  # type: ignore[attr-defined]
    return _module[0]


@pytest.fixture
def on_ranks(built: Path) -> Callable[..., Launched]:
    """Run a function's source on n processes, each with the emulated extension; see launch.launch."""

    def run(n: int, function: Any, *args: object, env: dict[str, str] | None = None, **options: Any) -> Launched:
        path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH", "")])])
        return launch(n, function, *args, env={"PYTHONPATH": path, **(env or {})}, **options)

    return run
