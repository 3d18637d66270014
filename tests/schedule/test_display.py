"""Notebook displays of topologies, programs, schedules and simulations."""

from __future__ import annotations

import sys
import xml.dom.minidom
from html.parser import HTMLParser
from typing import Any

import pytest

import pycollective as pc
from pycollective import schedule
from pycollective.schedule import Program


class Cells(HTMLParser):
    """The texts of a table's cells; rejects unclosed tags."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.cells: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("td", "th"):
            self.cells[-1] += data


def test_a_schedule_is_a_picture() -> None:
    pytest.importorskip("matplotlib")
    compiled: Any = schedule.compile("ring", "allreduce", 4)
    picture = xml.dom.minidom.parseString(compiled._repr_svg_())
    assert picture.documentElement.tagName == "svg" and compiled._repr_html_() is None
    assert compiled._repr_svg_() == compiled._repr_svg_()  # a saved notebook stays the same


def test_a_schedule_is_a_table_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as if it were not installed
    compiled: Any = schedule.compile("direct", "allreduce", 3)
    assert compiled._repr_svg_() is None
    cells = Cells(compiled._repr_html_()).cells
    steps = sum(len(rank.steps) for rank in compiled.ranks)
    assert len(cells) == 4 * (steps + 1) and any("out[2] = " in cell for cell in cells)


def test_a_large_schedule_is_a_table_that_ends() -> None:
    compiled: Any = schedule.compile("ring", "allreduce", 32)
    assert compiled._repr_svg_() is None
    cells = Cells(compiled._repr_html_()).cells
    assert len(cells) == 4 * 102 and cells[-3].endswith(" more")


def test_a_program_is_the_table_of_its_statements() -> None:
    p: Any = Program("allreduce", 2)
    for c in p.chunks(1):
        p[0, c] += p[1, c]
        p[1, c] = p.copy(p[0, c], at=0)
    cells = Cells(p._repr_html_()).cells
    assert cells[5:7] == ["p[0, 0] = p[0, 0] + p[1, 0]", "0"]
    assert cells[9:11] == ["p[1, 0] = p[0, 0]", "0"] and "test_display.py:" in cells[11]


def test_a_topology_is_what_is_known_and_a_picture() -> None:
    row: Any = schedule.info("wheel")
    instance = schedule.get("wheel(hub=2)")
    assert "topology wheel<" in row._repr_html_() and "topology wheel(hub=2)<" in instance._repr_html_()
    if pytest.importorskip("matplotlib"):
        assert "<svg" in instance._repr_html_()


def test_a_topology_that_does_not_work_yet_is_shown_without_a_picture() -> None:
    @pc.topology("display-unfinished")
    class Unfinished:
        """Not <b>yet</b>."""

        def allreduce(self, p: Program) -> None:
            raise pc.ProgramError("unfinished")

    text = Unfinished()._repr_html_()  # type: ignore[attr-defined]
    assert "Not &lt;b&gt;yet" in text and "<svg" not in text
    Cells(text)


def test_a_simulation_is_a_table() -> None:
    simulated: Any = schedule.simulate("ring", "allreduce", 4, 1 << 20)
    cells = Cells(simulated._repr_html_()).cells
    assert cells[cells.index("messages") + 1] == str(simulated.messages)


def test_an_explanation_is_a_table() -> None:
    explanation: Any = pc.local_world(2).run(lambda comm: comm.explain("allreduce", 1 << 20, "tree"))[0]
    cells = Cells(explanation._repr_html_()).cells
    assert cells[1].startswith("tree") and cells[cells.index("because") + 1] == explanation.reason
