"""Every environment variable that pycollective reads: one table, from which values and documentation come.

Standard library only, and no import of the package: the build runs this file, `python pycollective/settings.py HEADER`,
to write the rows of the C++ core (see csrc/base/environment.h).
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PREFIX = "PYCOLLECTIVE_"
"""Prefix of our names: one not in the table is misspelt, or meant for another version."""
WARNED = "PYCOLLECTIVE_WARNED"
MOST = 1e15
"""Larger numbers, including `inf`, are clamped to this: it fits the core's integers."""
OWN_LAUNCHER, HOROVODS_LAUNCHERS = "`pycollective run`", "Horovod's launchers"
LEVELS = ("trace", "debug", "info", "warn", "warning", "error", "fatal", "critical")

_NUMBERS = ("seconds", "milliseconds", "microseconds", "bytes", "count", "level")
_NUMBER = re.compile(r"\+?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?|\+?inf(inity)?", re.I)  # as in environment.cpp
_FLAGS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


@dataclass(frozen=True)
class Setting:
    """One variable."""

    name: str
    kind: str  # a unit of numbers (see _NUMBERS), flag, file, text, or secret (text that is not shown)
    default: Any  # in the kind's unit; its type is the type of the value (float, int, bool or str)
    meaning: str  # one line
    reader: str  # the part that reads it; for variables set by a launcher, the launcher
    field: str = ""  # the member of the C++ core's `Environment`; empty if the core does not read it
    older: str = ""  # another name of the same setting, read if `name` is not set
    positive: bool = False  # whether 0 is refused
    choices: tuple[str, ...] = ()  # accepted strings, case-insensitive; empty accepts all

    @property
    def expected(self) -> str:
        """Description of valid values, for errors."""
        if self.kind in _NUMBERS:
            unit = "" if self.kind in ("count", "level") else f" of {self.kind}"
            return f"a number{unit}, {'above' if self.positive else 'at least'} 0"
        if self.kind == "flag":
            return "1, true, yes or on, or 0, false, no or off"
        return f"one of {', '.join(self.choices)}"

    def parse(self, text: str, name: str = "") -> Any:
        """The value of a string.

        Raises:
            ValueError: not a valid value; gives the name, the string and what is expected.
        """
        value: Any = None
        if self.kind in _NUMBERS:
            value = min(float(text), MOST) if _NUMBER.fullmatch(text) else -1.0
            value = None if value < 0 or (self.positive and value == 0) else type(self.default)(value)
        elif self.kind == "flag":
            value = _FLAGS.get(text.strip().lower())
        elif not self.choices or text.lower() in self.choices:
            value = text
        if value is None:
            raise ValueError(f"{name or self.name}='{text}' is not {self.expected}")
        return value

    def write(self, value: Any) -> str:
        """A value in the form for the environment."""
        return value if isinstance(value, str) else f"{float(value):.10g}"

    def find(self, env: Mapping[str, str]) -> tuple[str, str]:
        """(the variable that sets it, its string); both empty if none does. An empty string counts as not set."""
        for name in filter(None, (self.name, self.older)):
            if env.get(name):
                return name, env[name]
        return "", ""


_CALLS, _GPU, _ENGINE, _ELASTIC = "calls", "calls on GPUs", "engine", "elastic.run"

# fmt: off
_ROWS = (  # name, kind, default, meaning, reader (or setter), field of the core
    Setting("PYCOLLECTIVE_TIMEOUT", "seconds", 300.0, "how long a call waits for its peers", _CALLS, "timeout"),
    Setting("PYCOLLECTIVE_SPIN_US", "microseconds", 2.0, "how long a wait spins before it yields", _CALLS, "spin_us"),
    Setting("PYCOLLECTIVE_YIELD_US", "microseconds", 50.0,
            "how long a wait yields before it sleeps", _CALLS, "yield_us"),
    Setting("PYCOLLECTIVE_AWAKE_US", "microseconds", 5000.0,
            "how long a blocking call waits before it sleeps, if every rank has a core", _CALLS, "awake_us"),
    Setting("PYCOLLECTIVE_SCRATCH", "bytes", 4 << 20, "shared scratch of each rank", _CALLS, "scratch_bytes"),
    Setting("PYCOLLECTIVE_TILE", "bytes", 128 << 10, "tile on window arrays", _CALLS, "tile_bytes"),
    Setting("PYCOLLECTIVE_STAGED_TILE", "bytes", 128 << 10, "tile on staged arrays", _CALLS, "staged_tile_bytes"),
    Setting("PYCOLLECTIVE_HOSTS_TILE", "bytes", 240 << 10, "tile of calls between hosts", _CALLS, "hosts_tile_bytes"),
    Setting("PYCOLLECTIVE_HOST_TIMEOUT", "seconds", 2.0,
            "how long a host may be silent until its ranks are lost", "calls between hosts", "host_timeout",
            positive=True),
    Setting("PYCOLLECTIVE_CUDA_SCRATCH", "bytes", 64 << 20, "GPU scratch of each rank", _GPU, "cuda_scratch_bytes"),
    Setting("PYCOLLECTIVE_CUDA_TILE", "bytes", 512 << 10, "largest tile on GPUs", _GPU, "cuda_tile_bytes"),
    Setting("PYCOLLECTIVE_CUDA_BLOCKS", "count", 64, "most thread blocks of a rank's calls on its GPU", _GPU,
            positive=True),
    Setting("PYCOLLECTIVE_CUDA_HOSTS", "text", "auto",
            "GPU arrays between hosts: nccl, staged (through host memory), or auto: NCCL if it is usable", _GPU,
            choices=("auto", "nccl", "staged")),
    Setting("PYCOLLECTIVE_TOPOLOGY", "text", "",
            "topology (NAME or FILE:NAME) of allreduce and its other collectives; default: direct", _CALLS),
    Setting("PYCOLLECTIVE_TUNING", "file", "", "choices measured by `pycollective tune`; rank 0's serve all ranks",
            _CALLS, older="PYCOLLECTIVE_AUTOTUNE_FILE"),
    Setting("PYCOLLECTIVE_ISA", "level", 3, "widest vector code used: 1 baseline, 2 AVX2, 3 AVX-512", _CALLS, "isa"),
    Setting("PYCOLLECTIVE_NCCL", "file", "", "the NCCL library to load; by default it is searched for", _GPU),
    Setting("PYCOLLECTIVE_TENSORFLOW_OP", "flag", True,
            "whether TensorFlow's graphs call by an operation of ours; else by numpy_function", "TensorFlow's graphs"),
    Setting("PYCOLLECTIVE_INIT_TIMEOUT", "seconds", 120.0,
            "how long init() waits for all ranks", "init()", positive=True),
    Setting("PYCOLLECTIVE_RANK", "text", "", "this rank", OWN_LAUNCHER),
    Setting("PYCOLLECTIVE_SIZE", "text", "", "number of ranks", OWN_LAUNCHER),
    Setting("PYCOLLECTIVE_LOCAL_RANK", "text", "", "rank within the host", OWN_LAUNCHER),
    Setting("PYCOLLECTIVE_LOCAL_SIZE", "text", "", "number of ranks on the host", OWN_LAUNCHER),
    Setting("PYCOLLECTIVE_RENDEZVOUS", "text", "", "name of the rendezvous socket of the ranks", OWN_LAUNCHER),
    Setting("PYCOLLECTIVE_HOST", "text", "",
            "ranks with different values are treated as on different hosts", "init()"),
    Setting("PYCOLLECTIVE_INTERFACE", "text", "",
            "interface (name, address or network) for connections between hosts", "init()"),
    Setting("PYCOLLECTIVE_LINK", "text", "auto",
            "link between hosts: auto (ucx if all have RDMA, else tcp), tcp, ucx; ucx-shm on one machine", "init()",
            choices=("auto", "tcp", "ucx", "ucx-shm")),
    Setting("PYCOLLECTIVE_TOKEN", "secret", "", "secret of a job across hosts: 32 hexadecimal digits", "init()"),
    Setting("PYCOLLECTIVE_REPORT", "text", "", "the pipe on which a rank reports why it fails", OWN_LAUNCHER),
    Setting(WARNED, "text", "", "unknown settings already reported by the launcher", OWN_LAUNCHER),
    Setting("PYCOLLECTIVE_ELASTIC_FILE", "file", "",
            "where commits of elastic training are kept for the next job", _ELASTIC),
    Setting("PYCOLLECTIVE_ELASTIC_DRIVER", "text", "", "where the driver of an elastic job listens", OWN_LAUNCHER),
    Setting("PYCOLLECTIVE_ELASTIC_WORKER", "text", "", "number of this worker of an elastic job", OWN_LAUNCHER),
    Setting("PYCOLLECTIVE_COMMIT", "text", "", "the commit named in reports if git is missing", "`bench`"),
    Setting("PYCOLLECTIVE_FUSION_BUFFER", "bytes", 512 << 10, "tile of the fusion buffer", _ENGINE),
    Setting("PYCOLLECTIVE_FUSION_BUFFERS", "count", 2,
            "tiles of the fusion buffer: further ones are packed ahead", _ENGINE),
    Setting("PYCOLLECTIVE_GPU_FUSION_BUFFER", "bytes", 64 << 20, "fusion buffer in GPU memory", _ENGINE),
    Setting("HOROVOD_FUSION_THRESHOLD", "bytes", 128 << 20, "maximum number of bytes fused", _ENGINE),
    Setting("HOROVOD_CYCLE_TIME", "milliseconds", 1.0,
            "how long an operation that no thread waits for is held for fusion", _ENGINE),
    Setting("HOROVOD_CACHE_CAPACITY", "count", 1 << 10, "minimum number of cached operations", _ENGINE),
    Setting("HOROVOD_STALL_CHECK_TIME_SECONDS", "seconds", 60.0,
            "time until a stall is reported", _ENGINE, older="HOROVOD_STALL_CHECK_TIME"),
    Setting("HOROVOD_STALL_CHECK_DISABLE", "flag", False, "1: never report stalls", _ENGINE),
    Setting("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "seconds", 300.0,
            "time until a stall ends the job; by default PYCOLLECTIVE_TIMEOUT; 0: never", _ENGINE,
            older="HOROVOD_STALL_SHUTDOWN_TIME"),
    Setting("HOROVOD_TIMELINE", "file", "", "output file of the timeline; DYNAMIC: started at run time", _ENGINE),
    Setting("HOROVOD_TIMELINE_MARK_CYCLES", "flag", False, "1: mark every batch in the timeline", _ENGINE),
    Setting("HOROVOD_AUTOTUNE", "flag", False, "1: tune threshold and cycle time by measurement", _ENGINE),
    Setting("HOROVOD_AUTOTUNE_LOG", "file", "", "log of autotuning measurements (CSV)", _ENGINE),
    Setting("HOROVOD_LOG_LEVEL", "text", "", "trace, debug, info, warning, error or fatal", _ENGINE, choices=LEVELS),
    Setting("HOROVOD_DYNAMIC_PROCESS_SETS", "flag", False,
            "1: process sets may be added after init()", "pycollective.torch"),
    Setting("HOROVOD_ELASTIC_TIMEOUT", "seconds", 600.0,
            "how long to wait for ranks or slots after a loss", _ELASTIC, positive=True),
    Setting("HOROVOD_RANK", "text", "", "this rank", HOROVODS_LAUNCHERS),
    Setting("HOROVOD_SIZE", "text", "", "number of ranks", HOROVODS_LAUNCHERS),
    Setting("HOROVOD_LOCAL_SIZE", "text", "", "number of ranks on the host", HOROVODS_LAUNCHERS),
    Setting("HOROVOD_CONTROLLER", "text", "", "gloo: Horovod's variables override MPI's", HOROVODS_LAUNCHERS),
    Setting("HOROVOD_GLOO_RENDEZVOUS_ADDR", "text", "", "with the port, the name of the job", HOROVODS_LAUNCHERS),
    Setting("HOROVOD_GLOO_RENDEZVOUS_PORT", "text", "", "with the address, the name of the job", HOROVODS_LAUNCHERS),
)
# fmt: on

TABLE = {row.name: row for row in _ROWS}
"""Every setting, by name."""


def read(name: str, env: Mapping[str, str] | None = None) -> Any:
    """The value of a setting: from the environment, else the default.

    Args:
        env: `os.environ` by default.

    Raises:
        ValueError: the environment has an invalid value for the setting.
    """
    row = TABLE[name]
    set_by, text = row.find(os.environ if env is None else env)
    return row.parse(text, set_by) if set_by else row.default


def is_set(name: str, env: Mapping[str, str] | None = None) -> bool:
    """Return whether the environment, `os.environ` by default, has a value for the setting."""
    return bool(TABLE[name].find(os.environ if env is None else env)[0])


def unknown(env: Mapping[str, str]) -> dict[str, str]:
    """The variables with our prefix that are not settings, each with a sentence that suggests the nearest name.

    Those already reported by the launcher are omitted.
    """
    older = {row.older for row in TABLE.values()}
    names = [name for name in env if name.startswith(PREFIX) and name not in TABLE and name not in older]
    done = env.get(WARNED, "").split(",") if names else []
    return {name: _not_known(name) for name in sorted(names) if name not in done}


def refuse_invalid(env: Mapping[str, str]) -> None:
    """ValueError for the first of our settings whose value is not valid."""
    for row in TABLE.values():
        if row.name.startswith(PREFIX):
            read(row.name, env)


def warn_of_unknown(stacklevel: int = 2) -> None:
    """Issue a RuntimeWarning for each unknown variable of the environment; only the first call in a process does."""
    global _warned
    if not _warned:
        _warned = True
        for sentence in unknown(os.environ).values():
            warnings.warn(sentence, RuntimeWarning, stacklevel=stacklevel + 1)


_warned = False


def _not_known(name: str) -> str:
    import difflib

    ours = {row.removeprefix(PREFIX): row for row in TABLE if row.startswith(PREFIX)}
    near = difflib.get_close_matches(name.removeprefix(PREFIX), ours, n=1)
    hint = f"did you mean {ours[near[0]]}?" if near else "`pycollective doctor --settings` lists them all"
    return f"{name} is not a setting of pycollective and has no effect; {hint}"


def header() -> str:
    """The C++ core's rows, as the X macro that csrc/base/environment.h uses."""
    head = "// Generated from pycollective/settings.py; do not edit.\n#pragma once\n"
    macro = "// X(field, name, default, expected values, unit, meaning)\n#define PC_ENVIRONMENT(X) \\"
    lines = [
        f'  X({row.field}, "{row.name}", {float(row.default)!r}, "{row.expected}", "{row.kind}", "{row.meaning}") \\'
        for row in TABLE.values()
        if row.field
    ]
    return "\n".join([head, macro, *lines, "", ""])


if __name__ == "__main__":
    Path(sys.argv[1]).parent.mkdir(parents=True, exist_ok=True)
    Path(sys.argv[1]).write_text(header())
