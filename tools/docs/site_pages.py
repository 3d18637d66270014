"""Hooks of mkdocs.yml: build the site from pages that are written for a code host.

The start page is the first part of the top-level README with the table of docs/README.md; its other sections are the
page "Getting started". The API reference has a page for each module with public names. Annotations of code blocks,
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

ROOT = Path(__file__).resolve().parents[2]
FIRST_SECTION = "## Install"
"""Heading of the README from which on it is the page "Getting started"."""
LAST_SECTION = "## Documentation"
"""Heading of the README from which on it is for the code host only."""
FIRST = ("init", "Communicator")
"""Names with which the API reference begins; errors are at the end."""
TITLES = {"file": "{}", "from": "{}", "output": "output"}
"""Annotation of a code block -> its displayed title."""

_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_OPENING = re.compile(r"^```(\w+)[ ]?([^\n`]*)$", re.MULTILINE)
_NESTED = re.compile(r"^((?:  )+)- ", re.MULTILINE)  # Python-Markdown needs four spaces per level
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Give headings the anchors of code hosts."""
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
    """A page in the form for the site."""
    if page.file.src_uri == "README.md":
        markdown = f"{first_screen()}\n## Documentation\n\n{markdown[markdown.index('| page |') :]}"
    return adapted(markdown, config.repo_url)


def first_screen() -> str:
    """The README up to the first section that newcomers do not need."""
    text = moved((ROOT / "README.md").read_text())
    return text[: text.index(FIRST_SECTION)]


def getting_started() -> str:
    """The sections of the README that follow its first screen."""
    text = moved((ROOT / "README.md").read_text())
    return "# Getting started\n\n" + text[text.index(FIRST_SECTION) : text.index(LAST_SECTION)]


def api(module: str) -> str:
    """The page of a module: the mkdocstrings entry of each public name.

    Raises:
        ValueError: a name has no docstring.
    """
    names = list(surface.public(module))
    undocumented = [name.full for name in names if not (_constant(name).doc if name.kind == "constant" else name.doc)]
    if undocumented:
        raise ValueError(f"public names without a docstring: {', '.join(undocumented)}")
    top = [name for name in names if "." not in name.path]
    top.sort(key=lambda name: (FIRST.index(name.path) if name.path in FIRST else len(FIRST), name.kind == "error"))
    return "\n\n".join([f"# {module}", *map(_entry, top), ""])


def _entry(name: surface.Name) -> str:
    """The mkdocstrings directive for a name; classes that users do not call are shown without their constructor."""
    if name.kind == "constant":  # an imported module has neither its docstring nor its source
        found = _constant(name)
        return f"## `{name.path}` {{#{name.full}}}\n\n```python\n{name.path}{found.code}\n```\n\n{found.doc}"
    options = ""
    if name.kind == "error":
        options = "members: false, inherited_members: false"  # not public according to `surface`
    elif name.kind == "class" and not name.callable:
        options = "merge_init_into_class: false"
    return f"::: {name.full}" + (f"\n    options: {{{options}}}" if options else "")


class _Constant(NamedTuple):
    code: str
    doc: str


def _constant(name: surface.Name) -> _Constant:
    """A constant in the source: its type or, without one, its value, and the docstring below it."""
    found = _package()[name.full.removeprefix("pycollective.")]
    typed = found.annotation is not None and str(found.annotation) != "TypeAlias"
    code = f": {found.annotation}" if typed else f" = {found.value}"
    return _Constant(code, found.docstring.value if found.docstring else "")


@functools.cache
def _package() -> Any:
    import griffe

    return griffe.load("pycollective")


def moved(text: str) -> str:
    """A text of the top-level folder as one of docs/, with its links adapted."""

    def move(found: re.Match[str]) -> str:
        mark, label, target = found.groups()
        if "://" in target or target.startswith("#"):
            return found[0]
        inside = target.startswith("docs/")
        target = (target.removeprefix("docs/") or "README.md") if inside else f"../{target}"
        return f"{mark}[{label}]({target})"

    return _outside_fences(lambda part: _LINK.sub(move, part), text)


def adapted(text: str, repository: str | None) -> str:
    """The Markdown of a page of docs/ in the form for the site.

    Args:
        text: Markdown as code hosts show it.
        repository: the address that files outside docs/ are linked to; None shows their names instead.

    Raises:
        ValueError: a link refers to no file.
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
    """`text` with everything but its code blocks changed."""
    parts, last = [], 0
    for fence in _FENCE.finditer(text):
        parts += [change(text[last : fence.start()]), fence[0]]
        last = fence.end()
    return "".join([*parts, change(text[last:])])
