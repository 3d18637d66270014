"""The generated lists of docs/architecture.md, and whether what the page names exists.

`python tools/docs/make_docs.py docs` writes the lists between the marks `<!-- begin NAME -->` and `<!-- end NAME -->`;
tests/house/test_docs.py compares the page with the code.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "pycollective"

_STOP = re.compile(r"^\d+\. \[`.+`\]\(\.\./(\S+)\): `(\w+)` ", re.MULTILINE)
_WORD = re.compile(r"^\| .* \| \[`(\w+)`\]\(\.\./(\S+)\) \|$", re.MULTILINE)
_PATH = re.compile(r"`((?:csrc|docs|pycollective|tests|tools)/[\w/]*(?:\.\w+)?)`")
_FOLDER = re.compile(r"^- `([\w/]+)`: (.*) \(.*\)$", re.MULTILINE)


def fill(page: str) -> str:
    """The page with its lists as they are now.

    Raises:
        ValueError: the page names a file, function or class that does not exist, or lacks a list or a folder of C++.
    """
    check(page)
    made = {"layers": _layers, "files": _files, "cpp": _folders}
    for name, rows in made.items():
        head, begin, rest = page.partition(f"<!-- begin {name} -->\n")
        old, end, tail = rest.partition(f"<!-- end {name} -->")
        if not end:
            raise ValueError(f"docs/architecture.md has no list called {name}")
        page = "".join([head, begin, *(f"{row}\n" for row in rows(old)), end, tail])
    return page


def check(page: str) -> None:
    """Check the paths of calls, the words, and every file and folder in quotes.

    Raises:
        ValueError: one does not exist, or a path returns to a file that it has left.
    """
    for section in page.split("\n## "):
        stops = _STOP.findall(section)
        if len({file for file, _ in stops}) < len(stops):
            raise ValueError("a path returns to a file that it has left")
        for file, function in stops:
            if not re.search(rf"(?:def |::|\s|^){function}\(", (ROOT / file).read_text(), re.MULTILINE):
                raise ValueError(f"{file} has no function {function}")
    defined = Counter(
        name for file in (ROOT / PACKAGE).rglob("*.py") for name in re.findall(r"^class (\w+)", file.read_text(), re.M)
    )
    for name, file in _WORD.findall(page):
        if not re.search(rf"^(?:class|struct)\b.*\b{name}\b[^;]*$", (ROOT / file).read_text(), re.MULTILINE):
            raise ValueError(f"{file} has no class {name}")
        if defined[name] > 1:
            raise ValueError(f"{defined[name]} classes are called {name}")
    for path in _PATH.findall(page):
        if not (ROOT / path).exists():
            raise ValueError(f"there is no {path}")


def purpose(file: Path) -> str:
    """The first paragraph of a module's docstring."""
    text = ast.get_docstring(ast.parse(file.read_text())) or ""
    return " ".join(text.split("\n\n")[0].split())


def _layers(_: str) -> Iterator[str]:
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


def _files(_: str) -> Iterator[str]:
    """Every Python module by what it is for."""
    for folder in sorted((ROOT / PACKAGE).rglob("__init__.py")):
        place = folder.parent
        yield f"### {place.relative_to(ROOT)}\n\n{purpose(folder)}\n"
        modules = [file for file in sorted(place.glob("*.py")) if file != folder]
        yield from [f"- `{file.name}`: {purpose(file)}" for file in modules] + [""] * bool(modules)


def _folders(old: str) -> Iterator[str]:
    """The folders of C++, in the order and with the descriptions of the page, by their files now."""
    described = dict(_FOLDER.findall(old))
    folders = {str(file.parent.relative_to(ROOT / "csrc")) for file in (ROOT / "csrc").rglob("*.cpp")}
    if missing := folders - described.keys():
        raise ValueError(f"docs/architecture.md does not describe {', '.join(sorted(missing))} of csrc")
    for folder, holds in described.items():
        names = sorted({file.stem for file in (ROOT / "csrc" / folder).glob("*.[ch]*")})
        yield f"- `{folder}`: {holds} ({', '.join(names)})"
