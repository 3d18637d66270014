"""The marker of the torch tests, and cleanup of what they leave in pytest's own process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pycollective.comm import world


@pytest.hookimpl(tryfirst=True)  # before the choice by markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.torch)


@pytest.fixture(autouse=True)
def _nobody_stays_initialized() -> Iterator[None]:
    """A communicator left by a test would be the default one of all later tests."""
    world.shutdown()  # of a test elsewhere
    yield
    left = world.is_initialized()
    world.shutdown()
    assert not left, "the test leaves a communicator: hvd.shutdown() ends engines only; call pycollective.shutdown()"
