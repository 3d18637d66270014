"""The space-time diagram shows every movement of data, and only those."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from pycollective.schedule import Placement, compile, names
from pycollective.schedule.drawing import graph
from pycollective.schedule.drawing.compiled import compiled
from pycollective.schedule.drawing.diagram import Arrow, arrows, draw, figure, step_times
from pycollective.schedule.drawing.style import chunk_colour

pytest.importorskip("matplotlib")


def test_files_of_all_kinds(tmp_path: Path) -> None:
    ring = compile("ring", "allreduce", 4)
    for suffix in ("png", "svg", "pdf"):
        draw(ring, tmp_path / f"ring.{suffix}")
        assert (tmp_path / f"ring.{suffix}").stat().st_size > 2000
    with pytest.raises(ValueError, match=r"path: .*'odd' is not supported"):
        draw(ring, tmp_path / "ring.odd")


@pytest.mark.parametrize("topology", names())
def test_every_topology_has_a_picture(topology: str) -> None:
    for size, placement in ((1, Placement.WINDOW), (2, Placement.STAGED), (8, Placement.INPLACE)):
        schedule = compile(topology, "allreduce", size, placement=placement)
        (axes,) = figure(schedule).axes
        assert [label.get_text() for label in axes.get_yticklabels()] == [str(rank) for rank in range(size)]
        assert (axes.get_xlabel(), axes.get_ylabel()) == ("time in steps", "rank")
        halos = [line for line in axes.lines if line.get_alpha() == 0.25]
        assert len(halos) == sum(step.complete for mine in schedule.ranks for step in mine.steps)
        assert sum(not text.get_text() for text in axes.texts) == len(arrows(schedule, step_times(schedule)))


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


@pytest.mark.parametrize("topology", names())
def test_a_message_is_one_arrow_between_lanes_that_name_their_hosts(topology: str) -> None:
    schedule = compile(topology, "allreduce", 6, hosts=(0, 0, 1, 1, 1, 2))
    between = [arrow for arrow in arrows(schedule, step_times(schedule)) if arrow.push]
    sends = [(rank, s) for rank, mine in enumerate(schedule.ranks) for s in mine.steps if s.kind == "send"]
    sent = [(rank, target.rank) for rank, step in sends for target in step.targets]
    assert sorted((arrow.begin[1], arrow.end[1]) for arrow in between) == sorted(sent)
    assert all(arrow.begin[0] < arrow.end[0] for arrow in between)
    (axes,) = figure(schedule).axes
    assert [label.get_text() for label in axes.get_yticklabels()][2] == "host 1: 2"
    assert sum(graph.traffic(schedule).get(pair, 0) for pair in set(sent)) == len(sent)


def test_older_data_leaves_when_it_is_read() -> None:
    schedule = compile("halving_doubling", "allreduce", 8, placement=Placement.WINDOW)
    moving = arrows(schedule, step_times(schedule))
    assert all(0 < arrow.end[0] - arrow.begin[0] <= 1 for arrow in moving)


@pytest.mark.parametrize("chunks", [1, 8, 9, 16, 64, 256, 5000])
def test_every_chunk_has_its_own_color(chunks: int) -> None:
    colours = [chunk_colour(chunk, chunks) for chunk in range(chunks)]
    assert len(set(colours)) == chunks
    if chunks <= 16:  # few enough to distinguish
        channels = [[int(colour[at : at + 2], 16) for at in (1, 3, 5)] for colour in colours]
        pairs = ((one, other) for i, one in enumerate(channels) for other in channels[:i])
        assert all(sum(abs(a - b) for a, b in zip(one, other, strict=True)) > 40 for one, other in pairs)


@pytest.mark.parametrize(("topology", "collective", "ranks"), [("ring", "allreduce", 16), ("direct", "alltoall", 8)])
def test_every_step_shows_its_chunk(topology: str, collective: str, ranks: int) -> None:
    schedule = compile(topology, collective, ranks, placement=Placement.WINDOW)
    picture = figure(schedule)
    (axes,) = picture.axes
    shown = sorted((text.get_position(), text.get_text()) for text in axes.texts if text.get_text())
    times = step_times(schedule)
    steps = [(times[rank][at], rank, step) for rank, m in enumerate(schedule.ranks) for at, step in enumerate(m.steps)]
    assert shown == sorted(((time, rank), str(step.chunk)) for time, rank, step in steps)


def test_a_topology_that_looks_at_hosts_is_drawn_on_two() -> None:
    assert compiled("hierarchical", "allreduce", 8).hosts == (0, 0, 0, 0, 1, 1, 1, 1)
    assert compiled("ring", "allreduce", 8).hosts == compiled("hierarchical", "allreduce", 8, hosts=1).hosts == ()
    picture = graph.figure(compiled("hierarchical", "allreduce", 8))
    assert "host 1" in [text.get_text() for text in picture.legends[0].get_texts()]
    assert picture.get_suptitle() == "hierarchical allreduce, 8 ranks on 2 hosts"


def test_a_sparse_graph_is_laid_out_by_networkx() -> None:
    for needed in ("networkx", "scipy"):
        pytest.importorskip(needed)
    picture = graph.figure(compile("star", "reduce", 6, placement=Placement.WINDOW, small=True))
    (axes,) = picture.axes
    places = {text.get_text(): text.get_position() for text in axes.texts if text.get_text()}
    others = [math.dist(places["0"], places[str(rank)]) for rank in range(1, 6)]
    assert max(others) < 1.05 * min(others), "the root is in the middle"


def test_the_graph_shows_which_ranks_communicate(tmp_path: Path) -> None:
    ring = compile("ring", "allreduce", 4, placement=Placement.WINDOW)
    assert graph.traffic(ring) == {(rank, (rank + 1) % 4): 6 for rank in range(4)}  # 2(n-1) chunks each
    star = compile("star", "allreduce", 4, placement=Placement.WINDOW)
    assert set(graph.traffic(star)) == {pair for rank in (1, 2, 3) for pair in ((0, rank), (rank, 0))}
    (axes,) = graph.figure(ring).axes
    assert [text.get_text() for text in axes.texts if text.get_text()] == ["0", "1", "2", "3"]
    assert len([text for text in axes.texts if not text.get_text()]) == 4  # arrows
    graph.figure(ring).savefig(tmp_path / "ring.svg")
    assert "<svg" in (tmp_path / "ring.svg").read_text()
