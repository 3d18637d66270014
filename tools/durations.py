"""A plugin of pytest: what each test costs, by item and by file. `make durations` (ARGS="tests/comm").

Wall and CPU seconds, with those of child processes that have been waited for, and the number of processes started by
this one. Fixtures count for the item that sets them up.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SHOWN = 30
Cost = tuple[float, float, int]
"""Wall and CPU seconds, and processes."""
_started = 0
_costs: dict[str, Cost] = {}


def _count(event: str, _: Any) -> None:
    global _started
    _started += event in ("subprocess.Popen", "os.fork", "os.posix_spawn")


sys.addaudithook(_count)


def _now() -> Cost:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return time.monotonic(), sum(each.ru_utime + each.ru_stime for each in used), _started


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: Any) -> Iterator[None]:
    item.stash[_BEFORE] = _now()
    return (yield)


_BEFORE: Any = pytest.StashKey()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: Any) -> Iterator[None]:
    try:
        return (yield)
    finally:
        item.user_properties.append(("cost", [a - b for a, b in zip(_now(), item.stash[_BEFORE], strict=True)]))


def pytest_runtest_logreport(report: Any) -> None:
    """Called where the results come together."""
    if report.when == "teardown":
        _costs[report.nodeid] = next(tuple(value) for name, value in report.user_properties if name == "cost")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    files: dict[str, list[Cost]] = defaultdict(list)
    for name, cost in _costs.items():
        files[name.partition("::")[0]].append(cost)
    sums = {f"{name} ({len(each)} items)": tuple(map(sum, zip(*each, strict=True))) for name, each in files.items()}
    total = {f"{len(_costs)} items": tuple(map(sum, zip(*_costs.values(), strict=True)))} if _costs else {}
    tables: dict[str, dict[str, Any]] = {"items": {**_costs}, "files": sums, "all": total}
    for title, table in tables.items():
        terminalreporter.section(f"costs of {title}")
        terminalreporter.write_line("  wall s    CPU s  processes")
        for name, cost in sorted(table.items(), key=lambda row: -row[1][1])[:SHOWN]:
            wall, cpu, processes = cost
            terminalreporter.write_line(f"{wall:8.2f} {cpu:8.2f} {processes:10}  {name}")
    if path := os.environ.get("PC_TEST_COSTS"):
        Path(path).write_text(json.dumps(_costs, indent=0))
