"""Cleanup of what the torch tests leave in pytest's own process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pycollective.comm import world


@pytest.fixture(autouse=True)
def _nobody_stays_initialized() -> Iterator[None]:
    """A communicator left by a test would be the default one of all later tests."""
    world.shutdown()  # of a test elsewhere
    yield
    left = world.is_initialized()
    world.shutdown()
    assert not left, "the test leaves a communicator: hvd.shutdown() ends engines only; call pycollective.shutdown()"
