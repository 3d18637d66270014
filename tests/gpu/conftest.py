"""The GPU side over the emulated runtime: see emulation.py.

With `-m gpu` the same tests, except those that need a feature of the emulation (marker `emulated`), run on the
installed extension and a real GPU, together with those written only for a device.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gpu import emulation
from launch import Launched, launch

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent


def pytest_configure(config: pytest.Config) -> None:
    """Before a module of this folder is imported."""
    expression = str(config.getoption("markexpr"))
    if "gpu" in expression and "not gpu" not in expression:
        os.environ[emulation.ON_DEVICE] = "1"


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        uses = {"cuda", "on_ranks", "built"} & set(getattr(item, "fixturenames", ()))
        if not uses or HERE not in item.path.parents:
            continue
        if not emulation.on_device():
            item.add_marker(pytest.mark.timeout(func_only=True))  # the first one builds the emulated extension
        elif item.get_closest_marker("emulated") is None:
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(autouse=True)
def _device_where_one_is_needed(request: pytest.FixtureRequest) -> None:
    """Skip a test marked `gpu`, with the reason, if no GPU can be used."""
    if request.node.get_closest_marker("gpu") is None:
        return
    from pycollective.comm.cuda.runtime import why_not

    if not emulation.on_device():
        pytest.skip("needs a GPU: pytest -m gpu")
    reason = why_not()
    if reason is not None:
        pytest.skip(f"needs a GPU: {reason}")


@pytest.fixture(scope="session")
def built() -> Path:
    """The file of the emulated extension; on a device, of the installed one."""
    if emulation.on_device():
        spec = importlib.util.find_spec(emulation.NAME)
        if spec is None or spec.origin is None:
            pytest.skip("needs a GPU: pycollective was installed without its GPU side")
        return Path(spec.origin)
    if emulation.why_not():
        pytest.skip(emulation.why_not())
    return emulation.build()


@pytest.fixture
def cuda(built: Path) -> Iterator[ModuleType]:
    """The emulated `pycollective._cuda`, while a test runs; on a device, the real one."""
    import pycollective

    if emulation.on_device():
        yield emulation.install()
        return
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
    """Load it once per process: an extension's types are registered once."""
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
