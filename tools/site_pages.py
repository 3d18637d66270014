"""Hooks of mkdocs.yml: what makes a site of pages that are written for a code host.

The start page is the first screen of the top-level README with the table of docs/README.md, and its other sections are
the page "Getting started". The API reference has a page for each module with public names. Annotations of code blocks,
which are for the tests, become titles. Links to files outside docs/ become links to `repo_url`, or text without one.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

import surface

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
FIRST_SECTION = "## Install"
"""Of the README: from here on it is the page "Getting started"."""
LAST_SECTION = "## Documentation"
"""Of the README: from here on it is for the code host only."""
TITLES = {"file": "{}", "from": "{}", "output": "output"}
"""Annotation of a code block -> the title that it is shown with."""

_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_OPENING = re.compile(r"^```(\w+)[ ]?([^\n`]*)$", re.MULTILINE)
_NESTED = re.compile(r"^((?:  )+)- ", re.MULTILINE)  # of which Python-Markdown wants four spaces a level
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Headings get the anchors that code hosts give them."""
    from pymdownx.slugs import slugify

    config.mdx_configs.setdefault("toc", {})["slugify"] = slugify(case="lower")
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/."""
    from mkdocs.structure.files import File

    pages = {"getting-started.md": getting_started(), **{f"api/{name}.md": api(name) for name in surface.MODULES}}
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: object) -> str:
    """A page as the site shows it."""
    if page.file.src_uri == "README.md":
        markdown = f"{first_screen()}\n## Documentation\n\n{markdown[markdown.index('| page |') :]}"
    return adapted(markdown, config.repo_url)


def first_screen() -> str:
    """The README up to the first section that a newcomer does not need."""
    text = moved((ROOT / "README.md").read_text())
    return text[: text.index(FIRST_SECTION)]


def getting_started() -> str:
    """The sections of the README that follow its first screen."""
    text = moved((ROOT / "README.md").read_text())
    return "# Getting started\n\n" + text[text.index(FIRST_SECTION) : text.index(LAST_SECTION)]


def api(module: str) -> str:
    """The page of a module: for each public name what mkdocstrings shows of it.

    Raises:
        ValueError: a name has no docstring.
    """
    names = list(surface.public(module))
    undocumented = [name.full for name in names if not (_constant(name).doc if name.kind == "constant" else name.doc)]
    if undocumented:
        raise ValueError(f"public names without a docstring: {', '.join(undocumented)}")
    return "\n\n".join([f"# {module}", *(_entry(name) for name in names if "." not in name.path), ""])


def _entry(name: surface.Name) -> str:
    """What makes mkdocstrings show a name; of a class that users do not call without its constructor."""
    if name.kind == "constant":  # of which an imported module keeps neither docstring nor source
        found = _constant(name)
        return f"## `{name.path}` {{#{name.full}}}\n\n```python\n{name.path}{found.code}\n```\n\n{found.doc}"
    options = ""
    if name.kind == "error":
        options = "members: false, inherited_members: false"  # what `surface` does not count as public
    elif name.kind == "class" and not name.callable:
        options = "merge_init_into_class: false"
    return f"::: {name.full}" + (f"\n    options: {{{options}}}" if options else "")


class _Constant(NamedTuple):
    code: str
    doc: str


def _constant(name: surface.Name) -> _Constant:
    """What the source has of a constant: its type or, where it has none, its value, and the docstring below it."""
    found = _package()[name.full.removeprefix("pycollective.")]
    typed = found.annotation is not None and str(found.annotation) != "TypeAlias"
    code = f": {found.annotation}" if typed else f" = {found.value}"
    return _Constant(code, found.docstring.value if found.docstring else "")


@functools.cache
def _package() -> Any:
    import griffe

    return griffe.load("pycollective")


def moved(text: str) -> str:
    """A text of the top-level folder as one of docs/: its links lead to the same files."""

    def move(found: re.Match[str]) -> str:
        mark, label, target = found.groups()
        if "://" in target or target.startswith("#"):
            return found[0]
        inside = target.startswith("docs/")
        target = (target.removeprefix("docs/") or "README.md") if inside else f"../{target}"
        return f"{mark}[{label}]({target})"

    return _outside_fences(lambda part: _LINK.sub(move, part), text)


def adapted(text: str, repository: str | None) -> str:
    """The Markdown of a page of docs/ as the site shows it.

    Args:
        text: Markdown as code hosts show it.
        repository: the address that files outside docs/ are linked to; None shows their names instead.

    Raises:
        ValueError: a link leads to no file.
    """

    def link(found: re.Match[str]) -> str:
        _, label, target = found.groups()
        if not target.startswith("../"):
            return found[0]
        path = PurePosixPath(target.removeprefix("../").partition("#")[0])
        if not (ROOT / path).exists():
            raise ValueError(f"a link to {target}, which does not exist")
        if repository:
            return f"[{label}]({repository.rstrip('/')}/blob/main/{path})"
        return f"`{path}`" if label == str(path) else f"{label} (`{path}`)"

    text = _outside_fences(lambda part: _NESTED.sub(r"\1\1- ", _LINK.sub(link, part)), text)
    return _OPENING.sub(_titled, text)


def _titled(found: re.Match[str]) -> str:
    """The opening line of a code block, its annotations as a title."""
    options = dict(word.partition("=")[::2] for word in found[2].split())
    titles = [TITLES[name].format(value) for name, value in options.items() if name in TITLES]
    return f"```{found[1]}" + (f' title="{titles[0]}"' if titles else "")


def _outside_fences(change: Callable[[str], str], text: str) -> str:
    """`text` with all but its code blocks changed."""
    parts, last = [], 0
    for fence in _FENCE.finditer(text):
        parts += [change(text[last : fence.start()]), fence[0]]
        last = fence.end()
    return "".join([*parts, change(text[last:])])
