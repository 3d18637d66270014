"""The site's pages, as mkdocs.yml and tools/site_pages.py make them of README.md and docs/; `make site` builds them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import site_pages
import surface

ROOT = Path(__file__).resolve().parents[2]


def test_every_page_is_in_the_navigation_once() -> None:
    nav = re.search(r"^nav:\n((?: .*\n)+)", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert nav is not None
    made = {"getting-started.md", *(f"api/{module}.md" for module in surface.MODULES)}
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert not made & pages
    assert sorted(re.findall(r": (\S+\.md)$", nav[1], re.MULTILINE)) == sorted(made | pages)


def test_the_readme_is_cut_in_two() -> None:
    """Links of both parts lead from docs/ to the files that they led to from the top."""
    first, rest = site_pages.first_screen(), site_pages.getting_started()
    assert "](images/topologies.png)" in first and "](add-a-topology.md)" in first and "## Use" not in first
    assert "## Use" in rest and "](../examples/digits.py)" in rest and "(docs/" not in first + rest
    for target in re.findall(r"\]\(([^)#]+)", first + rest):
        assert (ROOT / "docs" / target).exists(), target


@pytest.mark.parametrize(
    ("written", "repository", "shown"),
    [
        ("[a/b.py](../LICENSE)", None, "a/b.py (`LICENSE`)"),
        ("[LICENSE](../LICENSE)", None, "`LICENSE`"),
        ("[the text](../LICENSE)", "https://host/x", "[the text](https://host/x/blob/main/LICENSE)"),
        ("[GPUs](gpu.md#nccl)", None, "[GPUs](gpu.md#nccl)"),
        ("- a\n  - b\n    - c", None, "- a\n    - b\n        - c"),
        ("```python run=4 needs=torch\nx\n```", None, "```python\nx\n```"),
        ("```python file=x.py\nx\n```", None, '```python title="x.py"\nx\n```'),
        ("```text output numbers=any\n[a](../LICENSE)\n```", None, '```text title="output"\n[a](../LICENSE)\n```'),
    ],
)
def test_what_the_site_shows_of_markdown(written: str, repository: str | None, shown: str) -> None:
    assert site_pages.adapted(written, repository) == shown


def test_a_link_to_a_file_that_is_missing() -> None:
    with pytest.raises(ValueError, match=r"\.\./absent\.py"):
        site_pages.adapted("[source](../absent.py)", None)


def test_every_public_name_has_an_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    names = list(surface.public("pycollective"))
    page = site_pages.api("pycollective")
    assert re.findall(r"^::: (.*)$", page, re.MULTILINE) == [name.full for name in names if "." not in name.path]
    monkeypatch.setattr(surface, "public", lambda _: [surface.Name("pycollective", "nothing", lambda: 0)])
    with pytest.raises(ValueError, match="nothing"):
        site_pages.api("pycollective")
