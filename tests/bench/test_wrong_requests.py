"""What the benchmarks' programs refuse: one line names it, before anything starts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from pycollective.bench import ab, alignments, calls, cli, jobs

SWEEP = ["--quick", "--sizes", "4,64K", "--topology", "direct", "--ranks", "2", "--peers", "none"]
WRONG: list[tuple[Any, list[str], str]] = [
    (cli.app, [*SWEEP, "--collective", "alreduce"], "alreduce"),
    (cli.app, [*SWEEP, "--op", ""], "no ops"),
    (cli.app, [*SWEEP, "--peers", "glue"], "'glue'"),
    (cli.app, [*SWEEP, "--json", "--csv", "-"], "can use standard output"),
    (cli.app, [*SWEEP, "-b", "4"], "--sizes and -b, -e, -f both give the sizes"),
    (cli.app, [*SWEEP, "-n", "5"], "--quick and -n"),
    (cli.app, [*SWEEP, "-c", "-1"], "'--check'"),
    (cli.app, [*SWEEP, "--plot", "x.jpg"], "x.jpg: write one of .png"),
    (cli.app, [*SWEEP, "--ranks", "two"], "rank counts are written as 1-17"),
    (cli.app, [*SWEEP, "--json", "/proc/out.json"], "/proc/out.json"),
    (cli.app, [*SWEEP, "--csv", "file.py/out.csv"], "file.py"),
    (cli.app, [*SWEEP, "--plot", "/proc/plots"], "/proc/plots"),
    (cli.app, [*SWEEP, "--align", "6"], "--align 6 is not a multiple of the 4 bytes of float32"),
    (cli.app, [*SWEEP, "--arrays", "cupy"], "'cupy'"),
    (cli.app, [*SWEEP, "--neighbours", "-1"], "'--neighbours'"),
    (cli.app, ["--topology", "rng"], "rng"),
    (cli.app, ["--topology", "file.py:other"], "file.py"),
    (cli.app, ["--topology", "nowhere.py:star"], "nowhere.py"),
    (cli.app, ["--topology", "ring(hub=1)"], "ring has the parameters: none"),
    (ab.app, ["nowhere/python", sys.executable], "nowhere/python is not a program"),
    (ab.app, [sys.executable, sys.executable, "--sizes", "8,x"], "'x'"),
    (ab.app, [sys.executable, sys.executable, "--collectives", "allreduse"], "did you mean allreduce? (there are "),
    (ab.app, [sys.executable, sys.executable, "--speed-table", "--ranks", "3"], "no rows of 3 ranks"),
    (alignments.app, ["--dtype", "float31"], "'float31'"),
    (calls.app, ["--collective", "sendreceive"], "did you mean sendrecv?"),
    (jobs.app, ["--peers", "openmp"], "did you mean openmpi?"),
]


@pytest.mark.parametrize(
    ("app", "words", "message"), WRONG, ids=lambda value: " ".join(value[-2:]) if isinstance(value, list) else ""
)
def test_a_wrong_request_is_one_line(
    app: Any, words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file.py").touch()
    with pytest.raises(SystemExit) as ended:
        app(words)
    shown = capsys.readouterr()
    assert (ended.value.code, shown.out, shown.err.count("\n")) == (2, "", 1), shown
    assert message in shown.err
    assert [file.name for file in tmp_path.iterdir()] == ["file.py"]
