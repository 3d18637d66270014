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
    page = docs.architecture()
    rows = [line for line in page.splitlines() if line.startswith("- `")]
    assert len(rows) > 300 and all(row.split(": ", 1)[1] for row in rows), "a module without a docstring"
    with pytest.raises(ValueError, match="does not describe link of csrc"):
        architecture.fill(page.replace("\n- `link`: ", "\n- link: "))


def test_a_path_that_turns_back_or_names_what_is_not_there_is_refused() -> None:
    page = docs.architecture()
    for text, wrong, reason in (
        ("(../csrc/executor/cpu/group.h): `combine`", "(../csrc/executor/execute.h): `execute`", "returns to a file"),
        ("`enter` binds", "`allreduced` binds", "has no function allreduced"),
        ("`pycollective/topologies/`", "`pycollective/wheels/`", "there is no pycollective/wheels/"),
        ("[`Link`]", "[`Wheel`]", "link.h has no class Wheel"),
        (
            "[`Communicator`](../pycollective/comm/communicator.py)",
            "[`Group`](../pycollective/comm/group.py)",
            "classes are called Group",
        ),
    ):
        assert text in page
        with pytest.raises(ValueError, match=reason):
            architecture.check(page.replace(text, wrong))


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
