"""The generated lists of docs/architecture.md: layers, the paths of calls, words, extensions, and all files.

`python tools/docs/make_docs.py docs` writes them between the marks `<!-- begin NAME -->` and `<!-- end NAME -->`;
tests/house/test_docs.py compares the page with the code. Every file and every function that is named must exist.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import tomllib

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "pycollective"


class Stop(NamedTuple):
    """One function on a path: its file, its name there, and what it does."""

    file: str
    function: str
    does: str


CALL = (
    Stop("csrc/bindings/calls/methods.cpp", "enter", "binds the arguments to the method's parameters"),
    Stop(
        "csrc/bindings/calls/collective_calls.cpp",
        "collective",
        "reads the memory of the array, makes the output; of collectives in blocks, cuts both",
    ),
    Stop("csrc/bindings/calls/team_call.cpp", "prepare", "checks both, looks up the plan of the call's signature"),
    Stop(
        "csrc/executor/cpu/calls.cpp",
        "proceed",
        "begins the call (numbers it, and with windows agrees where the arrays are) and executes it",
    ),
    Stop("csrc/executor/execute.h", "execute", "runs the steps: the same text on CPUs and GPUs"),
    Stop("csrc/executor/cpu/group.h", "combine", "finds a step's memory, and adds or copies by the plan's kernel"),
)
GRADIENT = (
    Stop(
        "pycollective/torch/hvd/optimizer_methods.py",
        "step",
        "waits for the reductions, then takes the optimizer's step",
    ),
    Stop(
        "pycollective/torch/hvd/gradient_reducer.py",
        "_reduce",
        "describes the reduction of a gradient, when the backward pass has made it",
    ),
    Stop("pycollective/torch/hvd/submission.py", "add", "submits small gradients together, and decides when"),
    Stop("pycollective/engine/engine.py", "submit", "passes named operations to the core"),
    Stop("csrc/engine/negotiation/board.cpp", "announce", "shows the other ranks what this one has submitted"),
    Stop("csrc/engine/negotiation/policy.cpp", "due", "decides when a batch is cut, and what is fused in it"),
    Stop("csrc/engine/engine.cpp", "run_fused", "carries out a batch that all ranks have agreed on"),
    Stop(
        "csrc/engine/fused.cpp",
        "run_packed",
        "packs gradients into the fusion buffer, which all ranks have mapped, and reduces it",
    ),
)
_WORDS = """
topology | pycollective/schedule/language/registry.py TopologyInfo | a class whose methods write programs
program | pycollective/schedule/language/program.py Program | the copies and sums that a topology has written
schedule | pycollective/schedule/compiler/schedule.py Schedule | a compiled program: the steps of each rank
step | pycollective/schedule/compiler/steps.py Step | waits for other ranks, one sum or copy, and its target
placement | pycollective/schedule/compiler/schedule.py Placement | which of a call's arrays are in windows
simulation | pycollective/schedule/simulator/simulator.py Simulation | when each step runs on a given network
communicator | pycollective/comm/communicator.py Communicator | a group of ranks, and its methods
bootstrap | pycollective/comm/bootstrap/protocol.py Bootstrap | how ranks find each other before they connect
generation | pycollective/comm/bootstrap/elastic_messages.py Generation | the ranks of an elastic job until they change
backend | pycollective/comm/backend.py Backend | what runs the calls of a communicator
request | pycollective/comm/request.py CallRequest | a call's checked arguments, on its way to the backend
handle | pycollective/comm/handle.py Handle | a nonblocking call in progress
planner | pycollective/comm/planner.py Planner | chooses topology and variant for a signature, and compiles
team | csrc/executor/cpu/team.h Team | the core's half of a communicator
rank block | csrc/executor/control.h RankBlock | what a rank shows the others: its counter and its entries
entry | csrc/executor/control.h Entry | what a rank announces of one call
fingerprint | csrc/executor/control.h Fingerprint | what must be equal on all ranks of a call
plan | csrc/executor/plan.h Plan | a schedule with type, length and tiles: ready to execute
window | csrc/executor/cpu/windows.h WindowView | memory of all ranks that each of them has mapped
link | csrc/link/link.h Link | messages between two ranks on different hosts
rail | pycollective/comm/cuda/nccl/communicators.py NcclRail | the GPUs of equal number on all hosts, joined by NCCL
engine | pycollective/engine/engine.py Engine | runs named operations that ranks submit in any order
item | pycollective/engine/operation.py Item | an operation as it is submitted: a gradient, with its name
pending | csrc/engine/engine.h Pending | an item that has been submitted, in the core
announcement | csrc/engine/negotiation/announcement.h Announcement | what the other ranks learn of it
round | csrc/engine/negotiation/policy.h Round | what the ranks have announced of an operation, until all have
carrier | csrc/engine/negotiation/carrier.h Carrier | brings announcements together, in shared memory or by messages
piece | csrc/engine/fused.h Piece | a gradient's part of the fusion buffer
job | pycollective/engine/engine_job.py EngineJob | an agreed operation that the communicator's collectives run
Horovod's operation | pycollective/hvd/operations.py HorovodOperation | what hvd.allreduce and the like submit
process set | pycollective/hvd/process_sets.py ProcessSet | a subset of the ranks, in Horovod's interface
gradient group | pycollective/hvd/gradients/gradient_group.py GradientGroup | the gradients of a step in one call
mixing matrix | pycollective/schedule/mixing.py MixingMatrix | the weights of neighbours in a step of gossip
"""
GLOSSARY = {
    word: (*place.split(), meaning)
    for word, place, meaning in (row.split(" | ") for row in _WORDS.strip().splitlines())
}
"""Word -> the file and the class that stand for it, and what it is. No other Python class has the same name."""
EXTENSIONS = {
    "a topology": "one file in `pycollective/topologies/`, or one of your own",
    "a collective": "a row in `pycollective/schedule/collectives.py`, programs in topologies, a public method in "
    "`pycollective/comm/collectives.py` and its name in `pycollective/__init__.py`; then `python tools/nonblocking.py`",
    "an element type or an operator": "a row in `pycollective/dtypes.py`, arithmetic in `csrc/dtype/operators.h` "
    "or `csrc/dtype/convert.h`",
    "a link": "one class with the methods of `csrc/link/link.h`, made in `csrc/executor/cpu/hosts/remotes.cpp`, chosen "
    "and connected as in `pycollective/comm/hosts/ucx.py`",
    "a kind of shared memory": "one file in `csrc/window/`, and its name in `pycollective/comm/host/segments.py`",
    "a backend": "one class with the methods of `pycollective/comm/backend.py`",
    "a framework": "a package like `pycollective/torch/hvd/` on top of `pycollective/hvd/`: how its arrays are read, "
    "how its graphs call, its optimizer",
    "a setting": "a row in `pycollective/settings.py`, from which the build generates the header for C++",
    "a launcher": "`pycollective/comm/bootstrap/launchers.py` and `pycollective/comm/bootstrap/detection.py`",
    "a command": "one file in `pycollective/cli/`, and its line in `pycollective/cli/main.py`",
}

CPP = {
    "base": "settings, errors, arithmetic that is checked",
    "base/cuda": "CUDA's devices, driver functions and errors; freeing device memory without a wait",
    "dtype": "element types, operators and the kernels of each instruction set",
    "schedule": "the tables that the executor reads, and how arrays are cut",
    "window": "kinds of shared memory",
    "executor": "runs schedules; what a call announces, waits for and copies",
    "executor/cpu": "the executor among processes and threads of a host",
    "executor/cpu/hosts": "what ranks on several hosts add: ranks elsewhere, control messages, heartbeats",
    "executor/cuda": "the same on a GPU: the host's side, which launches kernels",
    "executor/cuda/kernels": "the kernels and their selection; how a block waits, communicates and reduces",
    "executor/cuda/kernels/instantiations": "the kernels of each group of element types, compiled separately",
    "executor/cuda/custom": "user-defined operators, linked with the kernels at run time",
    "link": "messages between ranks on different hosts",
    "rail": "NCCL, between hosts",
    "progress": "the threads that drive nonblocking calls",
    "engine": "named operations, submitted in any order: fused, and run in the background",
    "engine/negotiation": "which operations all ranks run next, agreed over shared memory (board) or messages (rounds)",
    "bindings": "what Python sees of it: the module and one file for each class",
    "bindings/arrays": "NumPy arrays and DLPack exports, and the checks of a call's arrays",
    "bindings/calls": "a communicator's calls: blocking, nonblocking, or of a fixed signature",
    "bindings/engine": "the engine's operations and their results",
    "bindings/cuda": "what Python sees of the GPU side",
    "frameworks": "what those of several frameworks share",
    "frameworks/jax": "handlers of XLA's custom calls, for JAX",
    "frameworks/tensorflow": "operations of TensorFlow's graphs",
}
"""The folders of C++, of which each, with its subfolders, uses only those above it."""


def lists() -> dict[str, str]:
    """The generated lists by name.

    Raises:
        ValueError: something that is named does not exist, or a path returns to a file that it has left.
    """
    return {
        "layers": "\n".join(_layers()),
        "call": "\n".join(_steps(CALL)),
        "gradient": "\n".join(_steps(GRADIENT)),
        "glossary": "\n".join(_glossary()),
        "extensions": "\n".join(_extensions()),
        "files": "\n".join(_files()),
    }


def fill(page: str) -> str:
    """The page with its lists as they are now.

    Raises:
        ValueError: the page lacks a list's marks; see also `lists`.
    """
    for name, text in lists().items():
        begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->"
        if begin not in page or end not in page:
            raise ValueError(f"docs/architecture.md has no list called {name}")
        head, _, rest = page.partition(begin)
        page = f"{head}{begin}{text}\n{end}{rest.partition(end)[2]}"
    return page


def purpose(file: Path) -> str:
    """The first paragraph of a module's docstring."""
    text = ast.get_docstring(ast.parse(file.read_text())) or ""
    return " ".join(text.split("\n\n")[0].split())


def _layers() -> Iterator[str]:
    """From import-linter's contracts, highest first."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    rooms = [re.split(r" ([|:]) ", layer) for layer in layers]
    forbidden = {
        (source, module)
        for contract in contracts
        if contract["type"] == "forbidden"
        for source in contract["source_modules"]
        for module in contract["forbidden_modules"]
    }
    yield "| package | | may import, with what those import |"
    yield "|---|---|---|"
    for number, room in enumerate(rooms):
        names, marks = room[::2], room[1::2]
        for name in names:
            beside = [other for other in names if other != name and ":" in marks]
            allowed = (
                [other for other in lower[::2] if (f"{PACKAGE}.{name}", f"{PACKAGE}.{other}") not in forbidden]
                for lower in rooms[number + 1 :]
            )
            nearest = next(filter(None, allowed), [])
            may = ", ".join(f"`{other}`" for other in beside + nearest) or "nothing"
            place = ROOT / ("" if name == "bench" else PACKAGE) / name
            file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
            yield f"| `{name}` | {purpose(file)} | {may} |"


def _steps(path: Sequence[Stop]) -> Iterator[str]:
    files = [stop.file for stop in path]
    if len(set(files)) < len(files):
        raise ValueError("a path returns to a file that it has left")
    for number, stop in enumerate(path, 1):
        text = (ROOT / stop.file).read_text()
        if not re.search(rf"(?:def |::|\s|^){re.escape(stop.function)}\(", text, re.MULTILINE):
            raise ValueError(f"{stop.file} has no function {stop.function}")
        yield f"{number}. [`{stop.file}`](../{stop.file}): `{stop.function}` {stop.does}."


def _glossary() -> Iterator[str]:
    defined = Counter(
        name for file in (ROOT / PACKAGE).rglob("*.py") for name in re.findall(r"^class (\w+)", file.read_text(), re.M)
    )
    yield "| word | is | in |"
    yield "|---|---|---|"
    for word, (file, name, meaning) in GLOSSARY.items():
        if not re.search(rf"^(?:class|struct)\b.*\b{name}\b[^;]*$", (ROOT / file).read_text(), re.MULTILINE):
            raise ValueError(f"{word}: {file} has no class {name}")
        if defined[name] > 1:
            raise ValueError(f"{word}: {defined[name]} classes are called {name}")
        yield f"| {word} | {meaning} | [`{name}`](../{file}) |"


def _extensions() -> Iterator[str]:
    yield "| to add | touch |"
    yield "|---|---|"
    for what, touch in EXTENSIONS.items():
        for name in re.findall(r"`([\w/]+(?:/|\.\w+))`", touch):
            if not (ROOT / name).exists():
                raise ValueError(f"to add {what}: there is no {name}")
        yield f"| {what} | {touch} |"


def _files() -> Iterator[str]:
    """Every Python module by what it is for, every folder of C++ by its files."""
    for folder in sorted((ROOT / PACKAGE).rglob("__init__.py")):
        place = folder.parent
        yield f"### {place.relative_to(ROOT)}\n\n{purpose(folder)}\n"
        modules = [file for file in sorted(place.glob("*.py")) if file != folder]
        yield from [f"- `{file.name}`: {purpose(file)}" for file in modules] + [""] * bool(modules)
    yield "### csrc\n\nThe folders of C++, of which each, with its subfolders, uses only those above it.\n"
    for part, holds in CPP.items():
        names = sorted({file.stem for file in (ROOT / "csrc" / part).glob("*.[ch]*")})
        yield f"- `{part}`: {holds} ({', '.join(names)})"
