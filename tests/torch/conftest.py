"""What the tests of the torch side leave behind in pytest's own process: no ranks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pycollective.comm import world


@pytest.fixture(autouse=True)
def _nobody_stays_initialized() -> Iterator[None]:
    """A communicator that a test leaves would be the default one of all tests after it."""
    world.shutdown()  # of a test elsewhere
    yield
    left = world.is_initialized()
    world.shutdown()
    assert not left, "the test leaves a communicator: hvd.shutdown() ends engines only; call pycollective.shutdown()"
