"""Settings for the tests of the running core: a hang ends in seconds, with the names of the ranks."""

from __future__ import annotations

import os

# The core reads its environment on first use, which is after collection.
os.environ.setdefault("PYCOLLECTIVE_TIMEOUT", "30")
