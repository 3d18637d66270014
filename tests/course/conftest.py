"""Modules of the course."""

from __future__ import annotations

import importlib
import sys

import pytest

from labs import HERE


@pytest.fixture
def from_course(monkeypatch):
    """Imports a module of the course; not later than the test, as other tests have modules of these names."""
    monkeypatch.syspath_prepend(HERE)
    yield importlib.import_module
    for name in [name for name, module in sys.modules.items() if str(HERE) in str(getattr(module, "__file__", ""))]:
        del sys.modules[name]
