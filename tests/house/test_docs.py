"""The generated documentation in the repository matches the tables."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

import architecture
import make_docs as docs
from pycollective import schedule

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize("name", ["topologies", "reference", "architecture"])
def test_generated_page_is_up_to_date(name: str) -> None:
    page = DOCS / f"{name}.md"
    assert page.read_text() == getattr(docs, name)(), f"run `make docs` and commit docs/{name}.md"


def test_every_module_and_folder_is_on_the_map() -> None:
    rows = [line for line in architecture.lists()["files"].splitlines() if line.startswith("- `")]
    assert rows and all(row.split(": ", 1)[1] for row in rows), "a module without a docstring"
    folders = {str(file.parent.relative_to(docs.ROOT / "csrc")) for file in (docs.ROOT / "csrc").rglob("*.cpp")}
    assert folders <= set(architecture.CPP)


def test_a_path_that_turns_back_or_names_what_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    first = architecture.CALL[0]
    for wrong, reason in (
        ((first, first), "returns to a file"),
        ((first._replace(function="allreduced"),), "has no function allreduced"),
    ):
        monkeypatch.setattr(architecture, "CALL", wrong)
        with pytest.raises(ValueError, match=reason):
            architecture.lists()
    monkeypatch.undo()
    monkeypatch.setitem(architecture.EXTENSIONS, "a wheel", "`pycollective/wheels/`")
    with pytest.raises(ValueError, match="there is no pycollective/wheels/"):
        architecture.lists()
    monkeypatch.undo()
    for file, name, reason in (
        ("csrc/link/link.h", "Wheel", "has no class Wheel"),
        ("pycollective/engine/operation.py", "Work", "2 classes are called Work"),
    ):
        monkeypatch.setitem(architecture.GLOSSARY, "wheel", (file, name, ""))
        with pytest.raises(ValueError, match=reason):
            architecture.lists()


def test_the_schemas_are_those_of_what_is_written() -> None:
    """And they accept the results in the repository."""
    published = {file.name: file.read_text() for file in (DOCS / "schemas").iterdir()}
    assert published == docs.schemas(), "run `make docs` and commit docs/schemas"
    results = DOCS.parent / "bench" / "results"
    for schema, result in (("speed", "cpu-speed"), ("engine", "engine-speed")):
        validate = jsonschema.Draft202012Validator(json.loads(published[f"{schema}.json"])).validate
        document = json.loads((results / f"{result}.json").read_text())
        validate(document)
        document["schema"] = "another"
        with pytest.raises(jsonschema.ValidationError):
            validate(document)


def test_every_topology_has_its_drawing() -> None:
    drawn = {file.stem for file in (DOCS / "images").glob("*.png")}
    assert {row.name for row in schedule.describe() if "allreduce" in row.collectives} <= drawn


def test_steps_are_those_that_follow_one_another() -> None:
    """The hub of a star does one step and the others one after it."""
    rows = [line.split(" | ") for line in docs.topologies().splitlines() if line.startswith("| `")]
    assert {row[0][3:-1]: row[2] for row in rows}.items() >= {("direct", "1"), ("star", "2"), ("ring", "14")}
