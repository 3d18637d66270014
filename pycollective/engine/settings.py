"""What can be set about the engine, each from an environment variable: Horovod's where it has one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

LEVELS = ("trace", "debug", "info", "warn", "warning", "error", "fatal", "critical")
MOST = 1e15
"""Of any number, also of what is endless: the core's integers hold it."""


def _setting(default: Any, variables: tuple[str, ...], meaning: str, unit: float = 1) -> Any:
    """A field read from the first of `variables` that is set, times `unit`."""
    return field(default=default, metadata={"variables": variables, "meaning": meaning, "unit": unit})


@dataclass(frozen=True)
class Settings:
    """Settings of an engine; those of rank 0 count for all. `Settings.read()` takes them from the environment.

    https://horovod.readthedocs.io/en/stable/tensor-fusion.html, .../autotune.html, .../timeline.html and
    .../troubleshooting.html describe Horovod's variables.
    """

    fusion_threshold: int = _setting(128 << 20, ("HOROVOD_FUSION_THRESHOLD",), "bytes that are fused at most")
    cycle_time: float = _setting(
        1e-3, ("HOROVOD_CYCLE_TIME",), "milliseconds that an operation nobody waits for yet waits for others", 1e-3
    )
    cache_capacity: int = _setting(1024, ("HOROVOD_CACHE_CAPACITY",), "operations that are remembered, at least")
    fusion_buffer: int = _setting(512 << 10, ("PYCOLLECTIVE_FUSION_BUFFER",), "bytes of a tile of the fusion buffer")
    fusion_buffers: int = _setting(
        2, ("PYCOLLECTIVE_FUSION_BUFFERS",), "tiles of the fusion buffer: others are packed ahead"
    )
    gpu_fusion_buffer: int = _setting(
        64 << 20, ("PYCOLLECTIVE_GPU_FUSION_BUFFER",), "bytes of the fusion buffer in GPU memory"
    )
    stall_check_time: float = _setting(
        60.0, ("HOROVOD_STALL_CHECK_TIME_SECONDS", "HOROVOD_STALL_CHECK_TIME"), "seconds until a stall is reported"
    )
    stall_check_disable: bool = _setting(False, ("HOROVOD_STALL_CHECK_DISABLE",), "1: never report stalls")
    stall_shutdown_time: float = _setting(
        0.0,
        ("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "HOROVOD_STALL_SHUTDOWN_TIME"),
        "seconds until a stall ends the job; 0: never",
    )
    timeline: str = _setting("", ("HOROVOD_TIMELINE",), "file of the timeline; DYNAMIC: started at run time")
    timeline_mark_cycles: bool = _setting(False, ("HOROVOD_TIMELINE_MARK_CYCLES",), "1: mark every batch")
    autotune: bool = _setting(False, ("HOROVOD_AUTOTUNE",), "1: find threshold, cycle time and topologies by measuring")
    autotune_log: str = _setting("", ("HOROVOD_AUTOTUNE_LOG",), "file for what autotuning measured (CSV)")
    autotune_file: str = _setting(
        "", ("PYCOLLECTIVE_AUTOTUNE_FILE",), "file that keeps what autotuning found for the next run"
    )
    autotune_topologies: str = _setting(
        "direct,star",
        ("PYCOLLECTIVE_AUTOTUNE_TOPOLOGIES",),
        "topologies that autotuning may choose; by default those with which fusion changes no bit",
    )
    log_level: str = _setting("", ("HOROVOD_LOG_LEVEL",), "trace, debug, info, warning, error or fatal")
    topology: str = _setting("", ("PYCOLLECTIVE_TOPOLOGY",), "topology of the allreduces; by default direct")

    @classmethod
    def read(cls, env: Mapping[str, str] | None = None) -> Settings:
        """From environment variables.

        Raises:
            ValueError: a variable's value is no number, or negative, or no level; names it.
        """
        env = os.environ if env is None else env
        settings = cls()
        for row in fields(cls):
            for variable in row.metadata["variables"]:
                if env.get(variable, "") != "":
                    value = _parse(variable, env[variable], type(row.default), row.metadata["unit"])
                    settings = replace(settings, **{row.name: value})
                    break
        return settings


def _parse(variable: str, text: str, kind: type, unit: float) -> Any:
    if variable == "HOROVOD_LOG_LEVEL" and text.lower() not in LEVELS:
        raise ValueError(f"{variable}={text!r} is none of {', '.join(LEVELS)}")
    if kind is str:
        return text
    if kind is bool:
        return text.strip().lower() not in ("0", "false", "no", "off")
    try:
        value = float(text) * unit
    except ValueError:
        raise ValueError(f"{variable}={text!r} is not a number") from None
    if not value >= 0:
        raise ValueError(f"{variable}={text!r} is negative, or no number")
    return kind(min(value, MOST))
