"""Settings for the tests of the engine: a hang ends within seconds and reports the ranks."""

from __future__ import annotations

import os

# The core reads its environment at its first use, after collection.
os.environ.setdefault("PYCOLLECTIVE_TIMEOUT", "30")
