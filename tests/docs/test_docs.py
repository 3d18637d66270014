"""The documentation is correct: its code runs, its outputs are real, its links are valid.

Options after the language of a fenced block:

    ```python run          run as a script by one process          ```python run=4     by four ranks, then by 1 and 2
    only                   by that number of ranks only
    ```text output         output of the previous block, of all ranks in rank order; "..." matches any text
    ```console run         run each line after "$ " in a shell; the other lines are the output
    ```python file=x.py    is x.py in the folder where the page's blocks run, with a copy of examples/
    ```python from=x.py    these lines are in x.py of the repository, in this order
    needs=torch,numba      only if these can be imported; mpi means an mpirun
    exit=137, grace=5      the exit code of `pycollective run`, and its --grace
    numbers=any            numbers may differ, for measured values
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from launch import CLI, OPEN_MPI_SETTINGS, find_mpirun, launch, run_command
from pycollective import _core, schedule, settings

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(?P<language>\w+)(?P<options>[^\n`]*)\n(?P<text>.*?)^```$", re.M | re.S)
LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")
SECONDS = 170


@dataclass
class Block:
    page: Path
    line: int
    language: str
    options: dict[str, str]
    text: str
    output: str | None = None
    numbers_differ: bool = False

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def needs(self) -> list[str]:
        return [need for need in self.options.get("needs", "").split(",") if need]

    @property
    def loaded(self) -> list[str]:
        """What takes seconds to import, in the form that the block would get."""
        own = [need for need in self.needs if need in ("torch", "tensorflow", "sklearn", "keras")]
        return own if "tensorflow" in own else [need for need in own if need != "keras"]  # which has several backends


def blocks_of(page: Path) -> Iterator[Block]:
    last: Block | None = None
    text = page.read_text()
    for found in FENCE.finditer(text):
        options = {word.partition("=")[0]: word.partition("=")[2] for word in found["options"].split()}
        block = Block(page, text.count("\n", 0, found.start()) + 1, found["language"], options, found["text"])
        if "output" in options:
            assert last is not None, f"{block}: the output of what?"
            last.output, last.numbers_differ = block.text, options.get("numbers") == "any"
            continue
        last = block
        yield block


BLOCKS = [block for page in PAGES for block in list(blocks_of(page))]


def named(*options: str) -> pytest.MarkDecorator:
    chosen = [b for b in BLOCKS if any(o in b.options for o in options)]
    return pytest.mark.parametrize("block", chosen, ids=lambda block: " ".join([str(block), *block.needs]))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Path]:
    """A folder for each page, with its files, the examples and the two commands."""
    commands = tmp_path_factory.mktemp("bin")
    for name, words in (("pycollective", CLI), ("python", [sys.executable])):
        (commands / name).write_text(f'#!/bin/sh\nexec {" ".join(words)} "$@"\n')
        (commands / name).chmod(0o755)
    made = {Path(): commands}
    for page in PAGES:
        made[page] = tmp_path_factory.mktemp(page.stem)
        shutil.copytree(ROOT / "examples", made[page] / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    for block in BLOCKS:
        if "file" in block.options:
            (made[block.page] / block.options["file"]).write_text(block.text)
    return made


@named("run")
def test_block_runs(block: Block, folders: dict[Path, Path]) -> None:
    for need in block.needs:
        if not (find_mpirun() if need == "mpi" else importlib.util.find_spec(need)):
            pytest.skip(f"needs {need}")
    if block.language == "console":
        return check_console(block, folders[block.page], folders[Path()])
    ranks = int(block.options["run"] or 1)
    launcher = "pycollective" if block.options["run"] else "alone"
    script = folders[block.page] / f"block{block.line}.py"
    script.write_text(block.text)
    options = {"launcher": launcher, "timeout": SECONDS, "grace": float(block.options.get("grace", 0))}
    # A single rank starts as a reader's does.
    done = launch(ranks, script, loaded=block.loaded if ranks > 1 else (), **options)
    assert done.returncode == int(block.options.get("exit", 0)), f"{block}\n{done.report()}"
    if block.output is not None:
        written = "".join(done.outputs)
        assert_alike(written, block.output, block.numbers_differ)
    if launcher == "pycollective" and not {"only", "exit"} & block.options.keys():
        for others in {1, 2, 4} - {ranks}:
            done = launch(others, script, loaded=block.loaded if others > 1 else (), **options)
            assert done.returncode == 0, f"{block} by {others} ranks\n{done.report()}"


def check_console(block: Block, folder: Path, commands: Path) -> None:
    parts = re.split(r"^\$ (.*\n)", block.text, flags=re.M)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYCOLLECTIVE_", "OMPI_", "PMI", "PRTE_"))}
    mpirun = find_mpirun()
    path = [str(commands), *([str(Path(mpirun).parent)] if mpirun else []), environment["PATH"]]
    environment |= {**OPEN_MPI_SETTINGS, "PATH": os.pathsep.join(path), "COLUMNS": "100"}
    environment["OMP_NUM_THREADS"] = "1"  # `pycollective run` reports it if unset
    for command, expected in zip(parts[1::2], parts[2::2], strict=True):
        options = {"cwd": folder, "env": environment, "stdin": subprocess.DEVNULL, "timeout": SECONDS}
        done = run_command("bash", "-c", f"exec 2>&1\n{command}", code=None, **options)
        assert_alike(done.stdout, expected, block.options.get("numbers") == "any", command)


def assert_alike(written: str, expected: str, numbers_differ: bool, what: str = "") -> None:
    """Whether the lines agree: in `expected` "..." matches any text, and spaces and rules of tables have any width."""
    pattern = r"\s+".join(
        ".*?".join(re.escape(piece) for piece in word.split("...")) for word in plain(expected, numbers_differ).split()
    )
    if not re.fullmatch(pattern, plain(written, numbers_differ).strip(), re.S):
        raise AssertionError(f"{what}wrote\n{written}\nbut the page shows\n{expected}")


def plain(text: str, numbers_differ: bool) -> str:
    text = re.sub(r"[─━═]+|(?<=[a-z])…", "", text)
    return re.sub(r"\d+(\.\d+)?", "0", text) if numbers_differ else text


@named("from")
def test_block_is_in_its_file(block: Block) -> None:
    there = iter((ROOT / block.options["from"]).read_text().splitlines())
    missing = [line for line in block.text.splitlines() if line.strip() and line not in there]
    assert not missing, f"{block}: not in {block.options['from']}, or not in this order: {missing[0]}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_are_valid(page: Path) -> None:
    for target in LINK.findall(FENCE.sub("", page.read_text())):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path) if path else page
        assert file.exists(), f"{page.name}: {target}: no such file"
        assert not anchor or anchor in anchors(file), f"{page.name}: {target}: no such heading"


def anchors(page: Path) -> set[str]:
    """The headings of a page as GitHub's anchors."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text()), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_index_names_every_page() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    missing = [page.name for page in PAGES[1:] if page.name != "README.md" and f"({page.name})" not in index]
    assert not missing, f"docs/README.md does not link to {', '.join(missing)}"


def test_everything_in_the_tables_is_documented() -> None:
    text = "\n".join(page.read_text() for page in PAGES)
    names = [row.name for row in schedule.describe()]
    names += [*settings.TABLE, *(name for name, _ in _core.operators())]
    names += [*map(str, _core.dtypes()), *schedule.COLLECTIVES]
    missing = [name for name in names if f"`{name}`" not in text]
    assert not missing, f"not in the documentation: {', '.join(missing)}"
