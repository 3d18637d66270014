"""Settings for the tests of the running core: a hang ends in seconds, with the names of the ranks."""

from __future__ import annotations

import os
import threading

import pytest

# The core reads its environment on first use, which is after collection.
os.environ.setdefault("PYCOLLECTIVE_TIMEOUT", "30")


@pytest.fixture
def event() -> threading.Event:
    """What has happened on one rank of a test, for the others, which are threads too."""
    return threading.Event()
