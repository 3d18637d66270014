"""What every test can count on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pycollective.schedule import registry


@pytest.fixture(autouse=True)
def _only_our_topologies_remain() -> Iterator[None]:
    """A topology that a test registers is gone after it."""
    registry.names()
    before, homes = dict(registry._registered), dict(registry._homes)
    yield
    registry._registered.clear()
    registry._registered.update(before)
    registry._homes.clear()
    registry._homes.update(homes)
