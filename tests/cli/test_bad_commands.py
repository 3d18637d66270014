"""Wrong input ends with exit code 2 and one line that names it, never with a traceback."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from launch import CLI, run_command
from pycollective.cli.main import app

UNSOUND = """
from pycollective.schedule import topology

@topology("unsound")
class Unsound:
    def allreduce(self, p):
        return {}["key"]
"""

WRONG: dict[str, tuple[list[str], str]] = {
    "unknown topology": (["verify", "rign"], "did you mean ring"),
    "ranks": (["verify", "ring", "--ranks", "x"], "rank counts are written as 1-17"),
    "no ranks": (["verify", "ring", "--ranks", "0"], "rank counts are from 1 to 65536"),
    "enormous ranks": (["verify", "ring", "--ranks", "1-99999999999999"], "rank counts are from 1 to 65536"),
    "enormous ranks to draw": (["draw", "ring", "--ranks", "99999999"], "rank counts are from 1 to 65536"),
    "collective": (["verify", "ring", "--collective", "nope"], "no collective is called 'nope'"),
    "a file that fails": (["verify", "failing.py"], r"ZeroDivisionError: division by zero (.*failing.py:1)"),
    "a file that is not there": (["draw", "none.py"], "there is no file none.py"),
    "a topology that fails": (["draw", "unsound.py", "--ranks", "2"], "KeyError: 'key' (.*unsound.py:7)"),
    "simulating one": (["simulate", "unsound.py", "--ranks", "2"], "'key' (.*unsound.py:7)"),
    "root": (["draw", "ring", "--collective", "broadcast", "--root", "9"], "root 9 is out of range for 8 ranks"),
    "a topology and a graph": (["draw", "ring", "--mix", "ring"], "name no topology"),
    "unknown graph": (["draw", "--mix", "rimg"], "ring"),
    "a parameter too many": (["draw", "--mix", "ring(degree=3)"], "ring has no parameters"),
    "unknown parameter": (["draw", "--mix", "random_pairs(degree=3)"], "unexpected keyword argument 'degree'"),
    "degree": (["draw", "--mix", "random_regular(degree=1)"], "degree"),
    "no steps": (["draw", "--mix", "ring", "--steps", "0"], "--steps is from 1 to 64, not 0"),
    "a graph of no ranks": (["draw", "--mix", "ring", "--ranks", "0"], "0"),
    "format": (["draw", "ring", "--out", "x.txt"], "write one of .png"),
    "markup": (["verify", "x[/y]"], "no topology is called 'x[/y]' (there are"),
    "hosts": (["verify", "ring", "--hosts", "two"], "host counts are written as 2 or 1-3, not 'two'"),
    "more hosts than ranks": (["verify", "ring", "--ranks", "2-4", "--hosts", "5"], "4 ranks are on 1 to 4 hosts"),
    "some ranks": (["simulate", "ring", "--ranks", "0,4"], "from 1 to 65536"),
    "sizes": (["simulate", "ring", "--sizes", "4:2"], "ends before it begins"),
    "no size": (["simulate", "ring", "--sizes", "0"], "at least 1 byte"),
    "endless sizes": (["simulate", "ring", "--sizes", "1:1000G:+1"], "more than 10000 sizes"),
    "enormous size": (["simulate", "ring", "--sizes", "9" * 400], "more bytes than an address space"),
    "size": (["simulate", "ring", "--sizes", "1:8:x²"], "must be xFACTOR"),
    "a time without unit": (["simulate", "ring", "--latency", "5"], "not a time: '5'"),
    "bandwidth without time": (["simulate", "ring", "--bandwidth", "100Gbit"], "not a bandwidth"),
    "no ranks on a node": (["simulate", "ring", "--node", "0"], "ranks_per_node must be an integer from 1"),
    "latency": (["simulate", "ring", "--latency", "9" * 400 + "s"], "latency must be a finite number"),
    "bandwidth": (["simulate", "ring", "--bandwidth", "0B/s"], "bandwidth must be a number, above 0"),
    "folder": (["simulate", "ring", "--json", "none/x.json"], "there is no folder none"),
    "enormous launch": (["run", "-np", "99999999", "true"], "4096"),
    "no such command": (["verfiy", "ring"], "did you mean verify?"),
    "no such option": (["draw", "ring", "--rnaks", "4"], "--ranks"),
    "no topology": (["verify"], "name a topology"),
    "nearly a file": (["verify", "faling.py"], "there is no file faling.py; did you mean failing.py?"),
    "nearly a collective": (["simulate", "ring", "--collective", "alreduce"], "did you mean allreduce?"),
    "what a topology lacks": (["draw", "ring", "--collective", "alltoall"], "ring has no alltoall; it has allreduce"),
    "tile": (["simulate", "ring", "--tile", "x"], "not a size"),
    "format of a plot": (["simulate", "ring", "--plot", "x.txt"], "x.txt: write one of .png"),
    "a tile of nothing": (["simulate", "ring", "--tile", "0"], "a tile has at least 1 byte"),
    "an unreadable result": (["simulate", "ring", "--fit", "failing.py"], "failing.py: not a result of the schema"),
    "no such result": (["simulate", "ring", "--fit", "failing.pi"], "there is no file failing.pi"),
    "two for one output": (["simulate", "ring", "--csv", "-", "--json"], "one of --json and --csv"),
    "a folder to write": (["topologies", "--json", "."], "is a folder"),
    "nowhere to write": (["doctor", "--json", "none/x.json"], "there is no folder none"),
    "ranks to explain": (["explain", "--ranks", "5000"], "at most 4096 ranks"),
    "sizes to explain": (["explain", "--sizes", "x"], "not a size: 'x'"),
    "nearly an operator": (["bench", "--op", "sun"], "did you mean sum?"),
    "nearly a type": (["bench", "--dtype", "flot32"], "did you mean float32?"),
    "a number": (["bench", "-n", "x"], "'--iters'"),
    "an argument of demo": (["demo", "--epochs", "many"], "'--epochs'"),
    "no such example": (["demo", "--example", "faling.py"], "did you mean failing.py?"),
    "an option of run": (["run", "--tga", "true"], "--tag"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_is_named(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "failing.py").write_text("1 / 0\n")
    (tmp_path / "unsound.py").write_text(UNSOUND)
    arguments, words = WRONG[name]
    ended = CliRunner().invoke(app, arguments)
    assert ended.exit_code == 2, (ended.output, ended.exception)
    assert isinstance(ended.exception, SystemExit)
    output = " ".join(ended.output.replace("│", " ").split())
    first, _, last = words.partition(".*")
    assert first in output and last in output
    assert "Traceback" not in output and not ended.stdout
    assert len(ended.output.splitlines()) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"failing.py", "unsound.py"}


def test_in_a_terminal_of_ascii_letters(tmp_path: Path) -> None:
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    for words, code in ((["verify", b"\xff"], 2), (["verify", "ring", "--ranks", "2"], 0)):
        done = run_command(*CLI, *words, code=code, cwd=tmp_path, env=environment)
        assert "Traceback" not in done.stderr
