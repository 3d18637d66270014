"""Rows and checks, their provenance, and the JSON: ``{"schema", "provenance", "notes", "checks", "rows"}``."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from typing import Any

from pycollective.cli.outputs import json_text
from pycollective.comm.host.cores import cpu_model

from ..result import commit, version_of

SCHEMA = "pycollective-bench-gpu/1"


@dataclass(frozen=True)
class Row:
    """One candidate at one size.

    Attributes:
        part: of the measurement; candidates of one part, size and rank count took turns.
        nbytes: of each rank's buffer.
        seconds, rounds: per call: the median round, and all rounds.
        calls, sets: number of calls between two events, and of sets of buffers that they used.
        path, channels: "low-latency" or "schedule", and thread blocks per rank; of ours only.
        least_bytes: bytes that the algorithm reads and writes in device memory; 0 if not counted.
        of_ceiling: least_bytes per second over the copy bandwidth measured in the same process; 0 likewise.
        wrong: number of wrong output elements.
    """

    part: str
    candidate: str
    collective: str
    dtype: str
    ranks: int
    nbytes: int
    seconds: float
    rounds: tuple[float, ...]
    calls: int
    sets: int
    wrong: int
    path: str = ""
    channels: int = 0
    least_bytes: int = 0
    of_ceiling: float = 0.0

    @property
    def algbw(self) -> float:
        """Bytes of a rank's buffer per second."""
        return self.nbytes / self.seconds

    @property
    def busbw(self) -> float:
        """Bus bandwidth in bytes/s, as in nccl-tests."""
        return self.algbw * (2 * (self.ranks - 1) / self.ranks if self.collective == "allreduce" else 1.0)


@dataclass(frozen=True)
class Check:
    """A correctness check, whose duration does not matter."""

    name: str
    passed: bool
    text: str


@dataclass
class Result:
    """The result of a run."""

    provenance: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)

    def to_json(self) -> str:
        """JSON with one row per line."""
        checks = [asdict(check) for check in self.checks]
        document = {"schema": SCHEMA, "provenance": self.provenance, "notes": self.notes, "checks": checks}
        rows = [{**asdict(row), "algbw": round(row.algbw), "busbw": round(row.busbw)} for row in self.rows]
        return json_text({**document, "rows": rows}) + "\n"


def provenance(cuda: Any, device: int, ceiling: float, extra: Mapping[str, Any]) -> dict[str, Any]:
    """Device, driver, CUDA, packages, date and commit; no machine names."""
    properties = cuda.properties(device)
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": commit(),
        "device": properties["name"],
        "compute_capability": ".".join(map(str, properties["compute_capability"])),
        "multiprocessors": properties["multiprocessors"],
        "l2_bytes": properties["l2_bytes"],
        "memory_bytes": properties["memory_bytes"],
        "driver": driver(),
        "cuda_driver": _cuda_version(cuda.driver_version()),
        "cuda_runtime": _cuda_version(cuda.runtime_version()),
        "copy_bytes_per_second": round(ceiling),
        "cpu": cpu_model(),
        "pycollective": version_of("pycollective"),
        "torch": version_of("torch"),
        "cupy": next((v for name in ("cupy-cuda13x", "cupy-cuda12x", "cupy") if (v := version_of(name))), ""),
        **extra,
    }


def driver() -> str:
    """The driver's version, e.g. 580.65.06; empty if it is unknown."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip().partition("\n")[0]


def _cuda_version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def table(rows: Sequence[Row]) -> str:
    """The rows in columns, for display."""
    head = f"{'part':10}{'collective':11}{'dtype':9}{'n':>2}{'bytes':>11}  {'candidate':22}"
    lines = [f"{head}{'us':>10}{'GB/s':>8}{'ceiling':>8} wrong"]
    for row in rows:
        share = f"{row.of_ceiling:8.1%}" if row.of_ceiling else " " * 8
        lines.append(
            f"{row.part:10}{row.collective:11}{row.dtype:9}{row.ranks:2}{row.nbytes:11}  {row.candidate:22}"
            f"{row.seconds * 1e6:10.2f}{row.algbw / 1e9:8.1f}{share}{row.wrong:6}"
        )
    return "\n".join(lines)
