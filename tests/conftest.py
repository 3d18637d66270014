"""Fixtures of all tests."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from pycollective.schedule.language import registry

for _name in ("jax", "keras", "mxnet", "tensorflow", "torch"):
    _found = importlib.util.find_spec(_name)
    if _found is not None and _found.origin is None:  # found the folder of its tests, which is on the path
        modules: dict[str, Any] = sys.modules
        modules[_name] = None


@pytest.fixture(autouse=True)
def _only_our_topologies_remain() -> Iterator[None]:
    """Topologies that a test registers are removed after it."""
    registry.names()
    before, homes = dict(registry._registered), dict(registry._homes)
    yield
    registry._registered.clear()
    registry._registered.update(before)
    registry._homes.clear()
    registry._homes.update(homes)
