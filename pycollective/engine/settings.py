"""The engine's settings: the rows of the settings table that it reads, as one value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from pycollective import settings


def _setting(variable: str, unit: float = 1) -> Any:
    """A field read from an environment variable, times `unit`; its default is the table's."""
    default = settings.TABLE[variable].default
    return field(default=default * unit if unit != 1 else default, metadata={"variable": variable, "unit": unit})


@dataclass(frozen=True)
class Settings:
    """Settings of an engine; rank 0's apply to all. `Settings.read()` takes them from the environment.

    Bytes, seconds and counts; docs/reference.md documents each. Horovod's variables are described by
    https://horovod.readthedocs.io/en/stable/tensor-fusion.html, .../autotune.html, .../timeline.html and
    .../troubleshooting.html.
    """

    fusion_threshold: int = _setting("HOROVOD_FUSION_THRESHOLD")
    cycle_time: float = _setting("HOROVOD_CYCLE_TIME", 1e-3)
    cache_capacity: int = _setting("HOROVOD_CACHE_CAPACITY")
    fusion_buffer: int = _setting("PYCOLLECTIVE_FUSION_BUFFER")
    fusion_buffers: int = _setting("PYCOLLECTIVE_FUSION_BUFFERS")
    gpu_fusion_buffer: int = _setting("PYCOLLECTIVE_GPU_FUSION_BUFFER")
    stall_check_time: float = _setting("HOROVOD_STALL_CHECK_TIME_SECONDS")
    stall_check_disable: bool = _setting("HOROVOD_STALL_CHECK_DISABLE")
    stall_shutdown_time: float = _setting("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS")
    timeline: str = _setting("HOROVOD_TIMELINE")
    timeline_mark_cycles: bool = _setting("HOROVOD_TIMELINE_MARK_CYCLES")
    autotune: bool = _setting("HOROVOD_AUTOTUNE")
    autotune_log: str = _setting("HOROVOD_AUTOTUNE_LOG")
    tuning: str = _setting("PYCOLLECTIVE_TUNING")
    log_level: str = _setting("HOROVOD_LOG_LEVEL")
    topology: str = _setting("PYCOLLECTIVE_TOPOLOGY")

    @property
    def stall_warning_time(self) -> float:
        """Seconds until a stall is reported; 0: never."""
        quiet = self.stall_check_disable or self.log_level.lower() in ("error", "fatal")
        return 0.0 if quiet else self.stall_check_time

    @classmethod
    def read(cls, env: Mapping[str, str] | None = None) -> Settings:
        """Read the settings from environment variables, `os.environ` by default.

        Raises:
            ValueError: a variable has an invalid value; gives its name, the value and what is expected.
        """
        values = {}
        for row in fields(cls):
            value, unit = settings.read(row.metadata["variable"], env), row.metadata["unit"]
            values[row.name] = value * unit if unit != 1 else value
        if not settings.is_set("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", env):  # no wait is endless
            values["stall_shutdown_time"] = settings.read("PYCOLLECTIVE_TIMEOUT", env)
        return cls(**values)
