"""Settings and fixtures of the tests of the engine: those of the communicators."""

from comm.conftest import event  # noqa: F401 (its other lines set what the core reads)
