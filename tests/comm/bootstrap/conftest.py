from __future__ import annotations

from collections.abc import Iterator

import pytest

from pycollective.comm.bootstrap import places


@pytest.fixture(autouse=True)
def _places_are_left() -> Iterator[None]:
    """Places that a test has taken for this process are free for the ranks that a later one starts."""
    yield
    places.release()
