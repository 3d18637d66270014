"""pytest-benchmark cases, without another library: ``pytest bench``."""
