"""Rejects names of collectives where the table must be used. `python tools/checks/collectives.py` lists them.

The table is pycollective/schedule/collectives.py. Elsewhere a collective may be named only in topologies, the public
interface, the wrappers of frameworks, tests and benchmarks. In other files the name of a collective as a literal
(Python), or as a member of the enumeration (C++), means that a property is duplicated: a new collective would have to
be added there too. Text for people is no name of a collective: a choice of words within an f-string, and a `label`.
Exits with 1 if there is one.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from pycollective.schedule.collectives import COLLECTIVES, OPERATIONS

FREE = (
    "pycollective/schedule/collectives.py",
    "pycollective/topologies/",
    "pycollective/bench/",
    "pycollective/horovod/",
    "pycollective/hvd/",
    "pycollective/jax/",
    "pycollective/keras/",
    "pycollective/mxnet/",
    "pycollective/optim/",
    "pycollective/tensorflow/",
    "pycollective/torch/",
    "pycollective/__init__.py",
    "pycollective/comm/collectives.py",
    "pycollective/comm/objects.py",
    "pycollective/comm/communicator.py",
    "pycollective/comm/functions.py",
    # Defaults of options.
    "pycollective/cli/draw.py",
    "pycollective/cli/explain.py",
    "pycollective/cli/simulate.py",
    # The communicator's methods that are C functions.
    "csrc/bindings/calls/allreduce_in_place.cpp",
    "csrc/bindings/calls/collective_calls.cpp",
    "csrc/bindings/calls/methods.cpp",
)
"""Files and folders that name collectives: the table, topologies, the public interface and the framework wrappers."""

ALLOWED: dict[str, set[str]] = {
    # A phase of the engine's work on an allreduce.
    "pycollective/engine/timeline.py": {"reduce"},
    "csrc/engine/timeline.cpp": {"reduce"},
    # The engine's fused allreduces, which the core runs itself.
    "csrc/bindings/engine/engine.cpp": {"allreduce"},
    "csrc/bindings/engine/grouped_allreduce.cpp": {"allreduce"},
    "csrc/engine/engine.cpp": {"allreduce"},
    "csrc/engine/negotiation/signature.h": {"allreduce"},
}
"""Names that other files may contain, and why."""

_NAMES = {*COLLECTIVES, *(row.name for row in OPERATIONS.values() if row.collective in COLLECTIVES)}
_MEMBER = re.compile(r"\b(?:Collective|Kind|NcclCall)::(\w+)")
_TEXT = re.compile(r'"(\w+)"')


def check(root: Path) -> list[str]:
    """Every violation under `root`, as `file:line: description`."""
    found: list[str] = []
    for folder, pattern, names in (("pycollective", "*.py", _in_python), ("csrc", "*", _in_cpp)):
        for file in sorted((root / folder).rglob(pattern)):
            name = file.relative_to(root).as_posix()
            if file.is_file() and not name.startswith(FREE):
                found += [
                    f"{name}:{line}: {word!r}: use the table of collectives (pycollective/schedule/collectives.py)"
                    for line, word in names(file.read_text())
                    if word in _NAMES - ALLOWED.get(name, set())
                ]
    return found


def _in_python(text: str) -> Iterator[tuple[int, str]]:
    for_people: list[ast.AST] = []
    for node in ast.walk(ast.parse(text)):  # from outside in
        if isinstance(node, ast.FormattedValue) and isinstance(node.value, ast.IfExp):
            for_people += [node.value.body, node.value.orelse]
        elif isinstance(node, ast.keyword) and node.arg == "label":
            for_people.append(node.value)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in for_people:
            yield node.lineno, node.value


def _in_cpp(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        code = line.partition("//")[0]
        for word in _MEMBER.findall(code) + _TEXT.findall(code):
            yield number, word


if __name__ == "__main__":
    problems = check(Path(__file__).resolve().parents[2])
    print("\n".join(problems) or "collectives are named in the table, topologies and the public surface")
    sys.exit(bool(problems))
