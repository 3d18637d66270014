"""The space-time diagram shows every movement of data, and only those."""

from __future__ import annotations

from pathlib import Path

import pytest

from pycollective.schedule import Placement, compile, names
from pycollective.schedule.drawing import Arrow, arrows, draw, figure, step_times


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_files_of_all_kinds(tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / f"ring.{suffix}"
    draw(compile("ring", "allreduce", 4), path)
    assert path.stat().st_size > 2000


@pytest.mark.parametrize("topology", names())
def test_every_topology_has_a_picture(topology: str) -> None:
    pytest.importorskip("matplotlib")
    for size, placement in ((1, Placement.WINDOW), (2, Placement.STAGED), (8, Placement.INPLACE)):
        schedule = compile(topology, "allreduce", size, placement=placement)
        (axes,) = figure(schedule).axes
        assert [label.get_text() for label in axes.get_yticklabels()] == [f"rank {rank}" for rank in range(size)]
        halos = [line for line in axes.lines if line.get_alpha() == 0.25]
        assert len(halos) == sum(step.complete for mine in schedule.ranks for step in mine.steps)
        assert len(axes.texts) == len(arrows(schedule, step_times(schedule)))


def test_steps_start_as_soon_as_their_waits_allow() -> None:
    n = 4
    ring = compile("ring", "allreduce", n, placement=Placement.WINDOW)
    assert step_times(ring) == [list(range(2 * (n - 1)))] * n
    star = compile("star", "allreduce", n, placement=Placement.WINDOW, small=True)
    assert step_times(star) == [[0], [1], [1], [1]]


def test_arrows_lead_from_where_data_was_made() -> None:
    chain = compile("ring", "broadcast", 3, 0, Placement.WINDOW)
    assert arrows(chain, step_times(chain)) == [
        Arrow((-0.9, 0), (0, 1), 0, push=False),
        Arrow((0, 1), (1, 2), 0, push=False),
    ]
    push = compile("direct", "allreduce", 2, placement=Placement.WINDOW)
    assert arrows(push, step_times(push)) == [
        Arrow((-0.9, 1), (0, 0), 0, push=False),
        Arrow((0, 0), (0.55, 1), 0, push=True),
        Arrow((-0.9, 0), (0, 1), 1, push=False),
        Arrow((0, 1), (0.55, 0), 1, push=True),
    ]


def test_data_that_has_lain_for_a_while_leaves_when_it_is_read() -> None:
    schedule = compile("halving_doubling", "allreduce", 8, placement=Placement.WINDOW)
    moving = arrows(schedule, step_times(schedule))
    assert all(0 < arrow.end[0] - arrow.begin[0] <= 1 for arrow in moving)
