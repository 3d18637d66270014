"""Result files: JSON that round-trips, and is rejected if it violates the schema."""

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycollective.bench.measurement.measure import Measured
from pycollective.bench.report.plot import plot_rows
from pycollective.bench.report.table import format_number, pivot_table, row_table
from pycollective.bench.result import Result, Row, collect_provenance, json_schema, make_row, read_json, to_csv, to_json
from pycollective.bench.workload.cases import Case
from pycollective.bench.workload.plan import Budget, Candidate, Conditions, Options, Plan, short_options, sweep_groups
from pycollective.cli.outputs import json_text
from pycollective.cli.units import format_time

CASE = Case("allreduce", "float32", "sum", 1024, 4)


def rows() -> list[Row]:
    made = []
    for group, count in enumerate((1024, 65536)):
        case = replace(CASE, count=count)
        for library, topology, seconds in (("mpi", "", 4e-5), ("pycollective", "my/file.py:star2", 1e-5)):
            candidate = Candidate(case, library, topology, "windows" if topology else "plain")
            measured = Measured(candidate, [seconds, 2 * seconds, 3 * seconds], 7, 0, 3 * seconds, (64, 4))
            made.append(make_row(measured, group, {"mpi": "openmpi"}))
    return made


def result() -> Result:
    provenance = collect_provenance({"openmpi": "Open MPI 5.0.11"}, {"4": "1"}, "openmpi", 0.1)
    return Result(provenance, short_options(Options(topologies=("my/file.py:star2",))), ["without gloo"], rows())


def test_row() -> None:
    row = rows()[1]
    assert (row.size, row.count, row.time_us, row.wrong) == (4096, 1024, 20.0, 0)
    assert (row.algbw, row.busbw) == (0.2048, 0.3072)
    assert (row.library, row.topology, row.rounds_us) == ("pycollective", "star2", [10.0, 20.0, 30.0])
    assert (row.p99_us, row.offsets, row.arrays) == (30.0, [64, 4], "numpy")
    assert rows()[0].library == "openmpi"


def test_json_round_trip() -> None:
    made = result()
    assert read_json(to_json(made)) == made


SCALARS = st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)


@given(VALUES)
def test_any_document_is_read_as_it_was(value: object) -> None:
    assert json.loads(json_text(value)) == value


def test_each_row_has_a_line() -> None:
    table = {"size": 8, "seconds": {4: [0.1, 0.2]}, "rows": [{"a": 1, "b": [{"c": 2}]}, {"a": 3}]}
    lines = json_text(table).splitlines()
    assert ' "size": 8,' in lines and '  {"a": 1, "b": [{"c": 2}]},' in lines and '  {"a": 3}' in lines
    assert json.loads(json_text(table))["seconds"] == {"4": [0.1, 0.2]}


def test_a_notebook_shows_the_table() -> None:
    text = result()._repr_html_()
    assert "star2" in text and "openmpi" in text and "20.00" in text and text.count("<pre") == text.count("</pre>") == 1


def test_json_is_valid_by_its_schema() -> None:
    schema = json.loads(json_schema())
    jsonschema.Draft202012Validator(schema).validate(json.loads(to_json(result())))
    for change in ({"ranks": "4"}, {"extra": 1}):
        document = json.loads(to_json(result()))
        document["rows"][0].update(change)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.Draft202012Validator(schema).validate(document)


def test_it_contains_no_paths() -> None:
    text = to_json(result())
    assert not [path for path in ("my/file", str(Path.home()), str(Path.cwd())) if path in text]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda d: d.update(schema="pycollective-bench/0"), "schema"),
        (lambda d: d.pop("rows"), "rows"),
        (lambda d: d["provenance"].pop("cpu"), "cpu"),
        (lambda d: d["rows"][0].update(extra=1), "extra"),
        (lambda d: d["rows"][0].update(time_us="fast"), "time_us"),
        (lambda d: d["rows"][0].update(ranks=4.5), "ranks"),
        (lambda d: d["rows"][0].update(wrong=True), "wrong"),
    ],
)
def test_json_that_departs_from_the_schema_is_refused(change, named: str) -> None:
    data = json.loads(to_json(result()))
    change(data)
    with pytest.raises(ValueError, match=named):
        read_json(json.dumps(data))


def test_csv() -> None:
    read = list(csv.DictReader(io.StringIO(to_csv(rows()))))
    assert (len(read), read[1]["topology"], "rounds_us" in read[0]) == (4, "star2", False)


def test_plan_round_trip() -> None:
    conditions = Conditions(fresh=False, align="8", neighbours=2)
    options = Options(dtypes=("int8",), arrays=("torch",), budget=Budget.quick(), conditions=conditions)
    plan = Plan(((Candidate(CASE, "mpi", arrays="torch"),),), options, ("mpi",), Budget(1), conditions)
    assert msgspec.json.decode(msgspec.json.encode(plan), type=Plan) == plan


def test_sweep_compares_all_candidates() -> None:
    options = Options(sizes="4,64", paths=("windows", "plain"), ops=("sum", "max"))
    groups = sweep_groups(options, 4, ["mpi", "gloo"], {"allreduce": ["ring", "tree"]})
    assert len(groups) == 4  # sizes x operators
    ours = [("pycollective", topology, path) for path in ("windows", "plain") for topology in ("ring", "tree")]
    peers = [("mpi", "", "plain"), ("gloo", "", "plain")]
    assert [(one.library, one.topology, one.path) for one in groups[0]] == peers + ours


def test_every_kind_of_array_is_a_candidate_and_a_barrier_has_none() -> None:
    options = Options(("allreduce", "barrier"), sizes="4", arrays=("numpy", "torch"))
    groups = sweep_groups(options, 2, [], {"allreduce": ["ring"], "barrier": ["default"]})
    assert [[(one.path, one.arrays) for one in group] for group in groups] == [
        [("windows", "numpy"), ("plain", "numpy"), ("windows", "torch"), ("plain", "torch")],
        [("plain", "numpy")],
    ]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (Options(paths=("gpu",)), "gpu"),
        (Options(ranks=(0,)), "rank count"),
        (Options(root=2), "root 2"),
        (Options(sizes="4:1"), "ends before"),
        (Options(dtypes=("float33",)), "float33"),
        (Options(conditions=Conditions(neighbours=-1)), "-1 neighbours"),
        (Options(conditions=Conditions(align="line")), "'line'"),
        (Options(dtypes=("int8", "float64"), conditions=Conditions(align="12")), "12 is not a multiple of the 8 bytes"),
    ],
)
def test_options_are_checked_before_anything_starts(options: Options, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        options.check()


def test_tables() -> None:
    from rich.console import Console

    console = Console(width=160, file=io.StringIO())
    console.print(row_table(rows(), 160))
    console.print(pivot_table(rows(), "openmpi", 160))
    text = console.file.getvalue()
    assert "star2" in text
    assert "4.0x" in text
    numbers = {0.12345: "0.123", 1.2345: "1.234", 12.345: "12.35", 123.45: "123.5", 12345.6: "12346"}
    assert {number: format_number(number) for number in numbers} == numbers
    assert [format_time(s) for s in (2.5, 0.0123, 4.56e-6, 1e-7)] == ["2.5 s", "12.3 ms", "4.56 us", "100 ns"]


@pytest.mark.parametrize("width", [70, 80, 100])
def test_a_narrow_table_keeps_the_columns_by_which_rows_differ(width: int) -> None:
    from rich.console import Console

    console = Console(width=width, file=io.StringIO())
    many = [msgspec.structs.replace(row, path=path) for row in rows() for path in ("windows", "plain")]
    console.print(row_table(many, width))
    text = console.file.getvalue()
    assert "\u2026" not in text
    assert all(word in text for word in ("openmpi", "pycollective", "windows", "plain", "(us)", "#wrong"))


def test_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert plot_rows(rows(), tmp_path / "one.png") == [tmp_path / "one.png"]
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")
    several = [*rows(), *(msgspec.structs.replace(row, op="max") for row in rows())]
    names = [path.name for path in plot_rows(several, tmp_path / "two.svg")]
    assert names == ["two-allreduce-float32.svg", "two-allreduce-float32-max.svg"]
    written = plot_rows(rows(), tmp_path)
    assert [path.name for path in written] == ["allreduce-float32.svg"]
    assert "star2" in written[0].read_text() or written[0].stat().st_size > 10_000
