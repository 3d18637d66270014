"""The options shared by verify, draw, simulate, explain and bench, and --json, have the same meaning in each."""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from launch import CLI, run_command
from pycollective.cli.commands import with_values
from pycollective.cli.main import app

COMMANDS = ("verify", "draw", "simulate", "explain", "bench")
OTHERS = ("run", "doctor", "topologies", "demo")
FILE = """
from pycollective.schedule import multiple_of, topology

@topology("pairs", ranks=multiple_of(2))
class Pairs:
    def allreduce(self, p):
        for c in p.chunks(1):
            p[p.ranks, c] = p.sum(p[q, c] for q in p.ranks)

@topology("deaf")
class Deaf:
    def allreduce(self, p):
        for c in p.chunks(1):
            p[0, c] = p.sum(p[q, c] for q in p.ranks)
            for r in range(1, p.size):
                p[r, c] += p[0, c]

@topology("broken")
class Broken:
    def allreduce(self, p):
        for c in p.chunks(1):
            p[0, c] = p[1, 1]
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(FILE)


def pycollective(*words: str, code: int = 0) -> Result:
    ended = CliRunner().invoke(app, [*words])
    assert ended.exit_code == code, ended.output
    return ended


TABLES = [
    "verify hierarchical(inner='tree',outer='ring') --ranks 4 --collective allreduce",
    "simulate --ranks 4 --sizes 1K,1G",
    "simulate hierarchical(inner='tree',outer='ring') hierarchical(inner='wheel',outer='tree') ring --ranks 4",
    "topologies",
    "doctor",
]


def test_help_and_tables_are_whole_at_80_columns_and_help_has_the_shared_options() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TERM"} | {"COLUMNS": "80"}
    helps = [[*CLI, name, "--help"] for name in (*COMMANDS, *OTHERS)]
    words = [*helps, [sys.executable, "-m", "pycollective.horovod", "--help"], *([*CLI, *t.split()] for t in TABLES)]
    with ThreadPoolExecutor(2) as pool:
        written = [*pool.map(lambda command: run_command(*command, env=environment).stdout, words)]
    for command, shown in zip(words, written, strict=True):
        lines = [line for line in shown.splitlines() if len(line.split()) > 1 or "…" in line]  # a path may be longer
        cut = [line for line in lines if len(line) > 80 or "…" in line]
        assert shown and not cut, f"{command[3:]}: {cut}"
    for name, shown in zip(COMMANDS, written, strict=False):
        shared = ("--topology", "--collective", "--ranks", "--plot", "TOPOLOGY")
        assert [option for option in shared if option not in shown] == [], name


@pytest.mark.parametrize("command", ["draw", "simulate", "verify"])
def test_a_topology_is_named_by_position_or_by_option(command: str) -> None:
    words = {"draw": ["--plot", "x.svg"], "simulate": ["--sizes", "1K", "--json"], "verify": ["--json"]}[command]
    words += ["--collective", "allreduce", "--ranks", "2"]
    ways = ("ring mine.py:pairs", "--topology ring --topology mine.py:pairs", "ring --topology mine.py:pairs")
    written = [pycollective(command, *names.split(), *words).stdout for names in ways]
    if command != "draw":
        rows = [json.loads(text)["rows"] for text in written]
        assert [row["topology"] for row in rows[0]] == ["ring", "pairs"]
        written = [json.dumps([{**row, "seconds": 0} for row in some]) for some in rows]
    assert written[0] == written[1] == written[2]


def test_json_of_draw_is_what_the_pictures_show() -> None:
    document = json.loads(pycollective("draw", "ring", "--ranks", "2,3", "--json").stdout)
    assert document["schema"] == "pycollective-drawing/1"
    assert list(Path().iterdir()) == [Path("mine.py")]  # no picture
    two, three = document["rows"]
    assert (two["ranks"], two["chunks"], three["ranks"], three["chunks"]) == (2, 2, 3, 3)
    assert two["topology"] == "ring" and two["collective"] == "allreduce" and two["root"] is None
    assert {(step["rank"], step["chunk"]) for step in three["steps"]} == {(r, c) for r in range(3) for c in range(3)}
    first = next(step for step in three["steps"] if step["rank"] == 0)
    assert first["step"] == first["time"] == 0
    assert {"rank": 2, "place": "in"} in first["sources"] and first["targets"] == [{"rank": 0, "place": "out"}]
    assert "topologies/ring.py:" in first["line"]
    (row,) = json.loads(pycollective("draw", "tree", "--ranks", "7", "--json").stdout)["rows"]
    for step in row["steps"]:  # a step runs after those that it waits for
        for wait in step["waits"]:
            awaited = [each for each in row["steps"] if each["rank"] == wait["rank"] and each["step"] < wait["steps"]]
            assert len(awaited) == wait["steps"] and all(each["time"] < step["time"] for each in awaited)
    assert three["traffic"] == [{"from": rank, "to": (rank + 1) % 3, "chunks": 4} for rank in range(3)]


def test_draw_writes_data_and_picture() -> None:
    words = ("draw", "ring", "--ranks", "2", "--plot", "x.svg")
    alone = pycollective(*words, "--json").stdout
    assert json.loads(alone)["rows"] and Path("x.svg").exists()
    assert pycollective(*words, "--json", "x.json").stdout == "x.svg\n"
    assert Path("x.json").read_text() == alone


@pytest.mark.parametrize(
    "words", [["simulate", "ring", "--ranks", "4", "--sizes", "1K"], ["verify", "ring", "--ranks", "2"], ["topologies"]]
)
def test_json_without_a_file_is_standard_output(words: list[str]) -> None:
    def plain(text: str) -> Any:
        document = json.loads(text)
        for row in document["rows"] if isinstance(document, dict) else ():
            row.pop("seconds", None)
        return document

    alone = pycollective(*words, "--json").stdout
    assert plain(alone) == plain(pycollective(*words, "--json", "-").stdout)
    written = pycollective(*words, "--json", "x.json").stdout
    assert plain(Path("x.json").read_text()) == plain(alone)
    assert "ring" in written and not written.lstrip().startswith(("{", "["))  # the table


def test_an_option_that_stands_alone_has_its_value_filled_in() -> None:
    assert with_values(["--json"]) == ["--json=-"]
    assert with_values(["--json", "--csv", "x"]) == ["--json=-", "--csv", "x"]
    assert with_values(["--json", "x", "--json", "-"]) == ["--json", "x", "--json", "-"]
    assert with_values(["a", "--", "--json"]) == ["a", "--", "--json"]


def test_verify_prints_the_source_of_every_rejected_statement() -> None:
    ended = pycollective("verify", "mine.py:deaf", "--ranks", "3", code=1)
    lines = [line.strip() for line in ended.stderr.splitlines()]
    assert "✗" in ended.stdout and "deaf allreduce: VerificationError" in ended.stderr
    assert "mine.py:16: p[r, c] += p[0, c]" in lines
    assert any("the result has the contribution" in line and " twice" in line for line in lines)
    ended = pycollective("verify", "mine.py:broken", "--ranks", "3", "--json", code=1)
    assert "    mine.py:22: p[0, c] = p[1, 1]" in ended.stderr.splitlines()
    (row,) = json.loads(ended.stdout)["rows"]
    assert row["error"].startswith("ProgramError") and row["lines"] == [f"{Path('mine.py').resolve()}:22"]


def test_rank_counts_that_a_topology_does_not_support() -> None:
    written = pycollective("verify", "mine.py:pairs", "--ranks", "1-5").stdout
    assert "2..4" in written and "pairs takes a multiple of 2 ranks: 3 other rank counts are left out" in written
    assert "2..16" in pycollective("verify", "mine.py:pairs").stdout
    for words in (["verify"], ["draw"], ["simulate"], ["explain"], ["bench", "--peers", "none"]):
        written = pycollective(*words, "--topology", "mine.py:pairs", "--ranks", "3", code=2).stderr
        assert written == "✗ pairs takes a multiple of 2 ranks, not 3; the nearest supported: 2 and 4\n"


def test_pictures() -> None:
    pytest.importorskip("matplotlib")
    written = pycollective("draw", "ring", "tree", "--ranks", "2,4", "--plot", "x.png", "--graph").stdout
    assert written.split() == ["x-ring-2.png", "x-ring-4.png", "x-tree-2.png", "x-tree-4.png"]
    assert all(Path(file).read_bytes().startswith(b"\x89PNG") for file in written.split())
    assert pycollective("draw", "wheel(hub=1)", "--out", "y.svg").stdout == "y.svg\n"
    pycollective("verify", "ring", "tree", "--ranks", "2-4", "--collective", "allreduce", "--plot", "z.svg")
    assert "<svg" in Path("z.svg").read_text()


def test_explain() -> None:
    words = ["mine.py:pairs", "--ranks", "2", "--sizes", "4,1M"]
    rows = json.loads(pycollective("explain", *words, "--json", "--plot", "x.svg").stdout)["rows"]
    assert [(row["nbytes"], row["topology"], row["ranks"]) for row in rows] == [(4, "pairs", 2), (1 << 20, "pairs", 2)]
    assert "zero-copy" in rows[1]["window"]
    assert Path("x.svg").exists()
    written = pycollective("explain", "--ranks", "2", "--sizes", "1M", "--collective", "alltoall").stdout
    assert "topology direct" in written and "it is the default within a host" in written
    assert "cores:        this rank may use" in written and "order of reduction" not in written
    assert max(map(len, written.splitlines())) <= 80
    written = pycollective("explain", "--ranks", "2", "--hosts", "2", "--sizes", "1M").stdout
    assert "order of reduction: rank" in written and "1048576 bytes from host 0 to host 1" in written


def test_a_network_fitted_to_a_result() -> None:
    words = ["direct", "--ranks", "2", "--peers", "none", "--quick", "--paths", "windows", "--sizes", "1K,64K,1M"]
    run_command(*CLI, "bench", *words, "--json", "r.json")
    written = pycollective("simulate", "direct", "--ranks", "2", "--sizes", "64K", "--fit", "r.json", "--json").stdout
    document = json.loads(written)
    assert len(document["fit"]["rows"]) == 3
    assert 0 <= document["fit"]["error"]["median"] <= document["fit"]["error"]["largest"]
    assert document["rows"][0]["time_us"] == pytest.approx(
        next(row["fitted_us"] for row in document["fit"]["rows"] if row["nbytes"] == 65536)
    )
    assert "error of the fit: median" in pycollective("simulate", "direct", "--ranks", "2", "--fit", "r.json").stdout
    for more, why in (
        (["--latency", "1us"], "leave one out"),
        (["--node", "2"], "leave out the options for nodes"),
        (["--collective", "broadcast"], "no correct results of pycollective for broadcast"),
    ):
        assert why in pycollective("simulate", "direct", "--ranks", "2", "--fit", "r.json", *more, code=2).stderr
    Path("r.json").write_text("{}")
    assert "r.json: not a result" in pycollective("simulate", "--fit", "r.json", code=2).stderr


def test_the_help_imports_no_command() -> None:
    code = (
        "import sys, runpy; sys.argv = ['pycollective', '--help']\n"
        "try: runpy.run_module('pycollective', run_name='__main__')\n"
        "except SystemExit: print(sorted({'numpy', 'msgspec', 'pycollective.bench.cli', 'pycollective.cli.verify'}"
        " & set(sys.modules)))"
    )
    done = run_command(sys.executable, "-c", code)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr
    assert all(name in done.stdout for name in (*COMMANDS, *OTHERS))


def test_the_shell_completes_topologies() -> None:
    asked = {"_PYCOLLECTIVE_COMPLETE": "complete_bash", "COMP_WORDS": "pycollective draw ri", "COMP_CWORD": "2"}
    script = "import sys; sys.argv = ['pycollective']; from pycollective.cli.main import app; app()"
    assert run_command(sys.executable, "-c", script, env=os.environ | asked).stdout.split() == ["ring"]
