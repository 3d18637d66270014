"""Settings for the tests of the engine: a hang ends in seconds, with the names of the ranks."""

from __future__ import annotations

import os

# The core reads its environment at its first use, which comes after collection.
os.environ.setdefault("PYCOLLECTIVE_TIMEOUT", "30")
