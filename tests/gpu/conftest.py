"""The GPU side over the emulated runtime: see emulation.py.

With `-m gpu` the same tests, except those that need a feature of the emulation (marker `emulated`), run on the
installed extension and a real GPU, together with those written only for a device.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

from gpu import emulation

HERE = Path(__file__).resolve().parent


def pytest_configure(config: pytest.Config) -> None:
    """Before a module of this folder is imported."""
    expression = str(config.getoption("markexpr"))
    if "gpu" in expression and "not gpu" not in expression:
        os.environ[emulation.ON_DEVICE] = "1"


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        uses = {"cuda", "built"} & set(getattr(item, "fixturenames", ()))
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
def cuda(built: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The emulated `pycollective._cuda`, while a test runs; on a device, the real one."""
    import pycollective

    if emulation.on_device():
        return emulation.install()
    monkeypatch.setitem(sys.modules, emulation.NAME, ModuleType("replaced"))  # restored after the test
    monkeypatch.setattr(pycollective, "_cuda", None, raising=False)
    return emulation.load(built)
