"""The speed table: what is measured for it, and how rows are computed."""

from dataclasses import replace

from msgspec.structs import replace as changed

from pycollective.bench.goals import SPEED, Comparison
from pycollective.bench.report.lines import markdown
from pycollective.bench.result import Row, collect_provenance
from pycollective.bench.row import Line
from pycollective.bench.speed import groups_for, line_of
from pycollective.bench.workload.plan import OURS

ROW = Row(
    "allreduce", OURS, "default", "windows", 2, 4096, 1024, "float32", "sum", -1, False,
    10.0, 1.0, 1.0, 0, 0, 1, [10.0, 10.0, 40.0],
)  # fmt: skip
ONE = Comparison("a row", "Open MPI", 2, (2,), (4096,))


def theirs(**change: object) -> Row:
    return changed(ROW, library="openmpi", topology="", path="plain", **{"time_us": 30.0, **change})  # type: ignore[arg-type]


def test_the_issue_s_rows_are_all_there() -> None:
    table = [one.name for one in SPEED if one.against == "Gloo"]
    assert [[one.least for one in SPEED if one.name == name] for name in table] == [
        [2, 20], [10, 20], [5, 7], [6, 8], [8, 10], [2, 3], [3, 10],
    ]  # fmt: skip


def test_every_comparison_is_measured() -> None:
    for ranks in (2, 4, 8):
        groups = groups_for(ranks)
        cases = [(group[0].case.collective, group[0].case.nbytes) for group in groups]
        assert len(set(cases)) == len(cases)
        assert all(len({one.case.nbytes for one in group}) == 1 for group in groups)
        for one in (one for one in SPEED if ranks in one.ranks):
            for size in one.sizes:
                group = groups[cases.index((one.collective, size))]
                ours = {(c.topology, c.path, c.case.dtype) for c in group if c.library == OURS}
                assert {(t, p, one.dtype) for t in one.topologies for p in one.paths} <= ours


def test_each_library_counts_with_its_faster_form() -> None:
    slow = theirs(in_place=True, time_us=90.0, rounds_us=[90.0, 90.0, 90.0])
    fast = theirs(rounds_us=[30.0, 30.0, 120.0])
    line = line_of(ONE, [ROW, slow, fast])
    assert (line.measured, line.worst) == ("3.00x", "2 ranks, 4 KiB, windows: 10 us against 30 us")


def test_the_worst_case_is_shown() -> None:
    two = replace(ONE, sizes=(4096, 8192))
    rows = [ROW, theirs(rounds_us=[50.0] * 3), changed(ROW, size=8192), theirs(size=8192, rounds_us=[20.0] * 3)]
    line = line_of(two, rows)
    assert (line.measured, line.met, line.worst.partition(":")[0]) == ("2.00x", True, "2 ranks, 8 KiB, windows")
    assert line.cases == {"2 ranks, 4 KiB, windows": 5.0, "2 ranks, 8 KiB, windows": 2.0}


def test_a_missing_side_is_not_measured() -> None:
    for row in (ROW, theirs()):
        assert line_of(ONE, [row]) == Line("a row", "Open MPI", ">= 2x", "-", None, "", {})


def test_bfloat16_is_compared_with_our_own_float32() -> None:
    one = Comparison("a row", "float32", 1 / 1.2, (2,), (4096,), dtype="bfloat16")
    half = changed(ROW, type="bfloat16", rounds_us=[11.0, 11.0, 44.0])
    other = changed(ROW, topology="ring", time_us=1.0, rounds_us=[1.0] * 3)
    line = line_of(one, [ROW, half, other])
    assert (line.goal, line.measured, line.met, [*line.cases.values()]) == ("<= 1.2x", "1.10x", True, [0.9091])


def test_markdown() -> None:
    text = markdown(
        [Line("a row", "Open MPI", ">= 2x", "1.99x", False, "", {}), Line("b", "", "< 1 ms", "-", None, "", {})],
        collect_provenance({"openmpi": "Open MPI 5"}, {"2": "default"}, "openmpi", 0.0),
        "speed",
    )
    assert "| a row | Open MPI | >= 2x | 1.99x | **no** |" in text
    assert "pycollective.bench.speed" in text
