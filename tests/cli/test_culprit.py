"""`pycollective run` names the rank that led to the end of a job, whichever ended first."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from speed import deadline

from launch import CLI, run_command
from pycollective.cli.launch import culprit as culprits
from pycollective.cli.launch.culprit import Ended, ExitReport, LastException, first_and_culprit, verdict

SCRIPT = """
import os, signal, sys
import numpy as np
import pycollective as pc
from pycollective.engine import Engine, Item

how, where, culprit = sys.argv[1], sys.argv[2], int(sys.argv[3])
comm = pc.init()
x = np.ones(1000, np.float32)
if where == "engine":
    engine = Engine(comm)
    call = lambda: engine.run([Item("allreduce", "x", x)])
elif where == "message":
    neighbour = (comm.rank + 1) % comm.size
    call = lambda: (comm.isend(x, neighbour), comm.recv(x.copy(), (comm.rank - 1) % comm.size))
else:
    call = lambda: comm.allreduce(x)
for step in range(5):
    if comm.rank == culprit and step == 3:
        if how == "raise": raise ValueError("bad input")
        if how == "exit": sys.exit(3)
        if how == "kill": os.kill(os.getpid(), signal.SIGKILL)
        if how == "segfault": os.kill(os.getpid(), signal.SIGSEGV)
        if how == "stop": os.kill(os.getpid(), signal.SIGSTOP)
        if how == "memory": [0] * (1 << 58)
        if how == "return": break
    try:
        call()
    except pc.PeerLostError as error:
        if how == "exit": sys.exit(7)  # as a program does that handles it
        raise RuntimeError("step failed") from error
"""
EXPECTED = {  # exit code, and the last line after "rank 1 (pid 123) "
    "raise": (1, "exited with code 1: ValueError: bad input"),
    "exit": (3, "exited with code 3"),
    "kill": (137, "was killed by SIGKILL"),
    "segfault": (139, "was killed by SIGSEGV"),
    "stop": (1, "did not respond; rank "),
    "memory": (1, "exited with code 1: MemoryError"),
    "return": (1, "exited with code 0 while other ranks needed it; rank "),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "rsh").write_text('export PYCOLLECTIVE_HOST=$1\nshift\nexec sh -c "$*"\n')
    (tmp_path / "script.py").write_text(SCRIPT)
    return tmp_path


def check(folder: Path, how: str, where: str, culprit: int, hosts: str = "") -> str:
    """Runs the script; the result is how it differs from what is expected."""
    command = [*CLI, "run", *(["-H", hosts, "--rsh", "sh ./rsh"] if hosts else ["-np", "3"])]
    command = [
        "env",
        f"PYCOLLECTIVE_TIMEOUT={deadline(2)}",
        "OMP_NUM_THREADS=1",
        *command,
        "script.py",
        how,
        where,
        str(culprit),
    ]
    done = run_command(*command, cwd=folder, timeout=60, code=None)
    code, start = EXPECTED[how]
    *before, last = done.stderr.splitlines()
    who, _, rest = last.removeprefix("pycollective run: ").partition(") ")
    wrong = [] if done.returncode == code else [f"exit code {done.returncode}"]
    wrong += [] if who.startswith(f"rank {culprit} (") and rest.startswith(start) else [f"last line {last!r}"]
    told = [line for line in before if "PeerLostError: rank" in line and not line.startswith("pycollective run")]
    if how == "raise" and not (all("ValueError: bad input" in line for line in told)):
        wrong.append(f"the others got {told}")
    if how == "raise" and f"raised on rank {culprit}" not in before:
        wrong.append("the traceback has no rank")
    return f"{how}, {where}, {culprit}: {'; '.join(wrong)}\n{done.stderr}" if wrong else ""


def check_all(folder: Path, wheres: list[str], *more: tuple[str, str, int], hosts: str = "") -> None:
    """Every way to end, in turn at each of `wheres` and on each rank, and more."""
    cases = [(how, where, number % 3) for number, (how, where) in enumerate(zip(EXPECTED, itertools.cycle(wheres)))]
    with ThreadPoolExecutor(3) as pool:
        wrong = [*filter(None, pool.map(lambda case: check(folder, *case, hosts), [*cases, *more]))]
    assert not wrong, "\n".join(wrong)


def test_the_rank_that_caused_the_end_is_named_last(folder: Path) -> None:
    more = [("raise", "engine", 0), ("raise", "message", 2), ("exit", "engine", 2), ("exit", "message", 0)]
    check_all(folder, ["call", "engine", "message"], *more)


@pytest.mark.integration
def test_of_several_hosts_too(folder: Path) -> None:
    check_all(folder, ["call", "engine"], hosts="a:1,b:2")


def test_exceptions_before_init(folder: Path) -> None:
    """Their text is known from standard error where the launcher passes it on, on one host and on several."""
    program = (
        "import os\nif os.environ['RANK'] == '1':\n raise LookupError('no data\\nhere')\nimport time; time.sleep(60)"
    )
    (folder / "script.py").write_text(program)
    for where in (["-np", "2"], ["-np", "2", "--tag"], ["-H", "a:1,b:1", "--rsh", "sh ./rsh"]):
        done = run_command(*CLI, "run", *where, "script.py", cwd=folder, timeout=60, code=1)
        last = done.stderr.splitlines()[-1]
        assert last.startswith("pycollective run: rank 1 (pid "), last
        assert last.endswith(") exited with code 1: LookupError: no data"), last
        assert "raise LookupError(" in done.stderr


@pytest.mark.parametrize(("lines", "text"), [
    ("Traceback (most recent call last):\n  File 'x', line 1, in <module>\n    f()\nValueError: bad\ninput\n",
     "ValueError: bad"),
    ("Traceback (most recent call last):\n  ...\npackage.errors.Odd\nWARNING: of another thread\n", "Odd"),
    ("Traceback (most recent call last):\n  ...\nmain.<locals>.E: a: b\n", "E: a: b"),
    ('  File "x.py", line 1\n    x = (\n        ^\nSyntaxError: never closed\n', "SyntaxError: never closed"),
    ("[rank1]: Traceback (most recent call last):\n[rank1]:   ...\n[rank1]: KeyError: 'k'\n", "KeyError: 'k'"),
    ("Traceback (most recent call last):\n  ...\nA: first\n\nDuring the handling of the above\n\n"
     "Traceback (most recent call last):\n  ...\nB: second\n", "B: second"),
    ("ValueError: in a log\n", ""),
    ("Traceback (most recent call last):\n  ...\n", ""),
])  # fmt: skip
def test_the_last_exception_on_standard_error(lines: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 0.0
    monkeypatch.setattr(culprits, "time", SimpleNamespace(monotonic=lambda: clock))
    found = LastException()
    for line in lines.encode().splitlines(keepends=True):
        found.read([line])
    clock = 60.0
    found.read([])  # torch takes its time to end
    assert found.text_of_end() == text
    found.read([b"next epoch\n"])
    assert found.text_of_end() == "", "a program that has logged it and continued ends by something else"


def ended(rank: int, code: int, blamed: int | None = None, text: str = "", stopped: bool = False) -> Ended:
    return Ended(rank, f"rank {rank}", code, stopped, blamed, text)


@pytest.mark.parametrize(("all_of_them", "code", "sentence"), [
    ([ended(0, 0), ended(1, 0)], None, ""),
    ([ended(0, 1, 1, "lost 1"), ended(2, 1, 0), ended(1, 4)], 4, "rank 1 exited with code 4"),
    ([ended(2, 1, 0), ended(0, 1, 1), ended(1, -9)], 137, "rank 1 was killed by SIGKILL"),
    ([ended(0, 1, 1, "A"), ended(1, 1, 0, "B")], 1, "rank 1 exited with code 1: B"),  # each blames the other
    ([ended(0, 2, 5, "lost 5")], 2, "rank 0 exited with code 2: lost 5"),  # of another host
    ([ended(1, 1, 1)], 1, "rank 1 exited with code 1"),
    ([ended(0, 1, 1, "late"), ended(1, -15, stopped=True)], 1,
     "rank 1 did not respond; rank 0 exited with code 1: late"),
    ([ended(0, 1, 1), ended(1, -15, None, "mine", True)], 1, "rank 1 failed: mine"),
    ([ended(0, -2, None, "", True), ended(1, -2, None, "", True)], 130,
     "the job was interrupted; rank 0 was killed by SIGINT"),
    ([ended(1, -77)], 205, "rank 1 was killed by signal 77"),
])  # fmt: skip
def test_verdicts(all_of_them: list[Ended], code: int | None, sentence: str) -> None:
    found = first_and_culprit(all_of_them)
    assert (found is None) == (code is None)
    if found is not None:
        assert verdict(*found) == (code, sentence)


REPORT = """
import os, sys
import pycollective.comm.bootstrap.failure as failure

failure.watch(3)
number = int(os.environ["PYCOLLECTIVE_REPORT"].partition(":")[0])
if sys.argv[1] == "another file":  # as in a child of the rank
    os.dup2(os.open("found", os.O_CREAT | os.O_WRONLY), number)
if sys.argv[1] == "fork" and os.fork():
    os.wait()
    sys.exit(0)
class Odd(Exception):
    def __str__(self):
        raise RuntimeError("no text")
if sys.argv[1] == "no text":
    raise Odd
raise ValueError("two\\nlines" if sys.argv[1] == "lines" else "\\U0001f600" * 500)
"""


@pytest.mark.parametrize("case", ["plain", "lines", "another file", "fork", "no text"])
def test_what_a_rank_writes(case: str, tmp_path: Path) -> None:
    report = ExitReport()
    command = ["env", f"PYCOLLECTIVE_REPORT={report.value}", sys.executable, "-c", REPORT, case]
    reader, writer = os.pipe2(os.O_DIRECT)  # each read gives what one call has written
    subprocess.run(command, cwd=tmp_path, pass_fds=[report.writer], stderr=writer)
    os.close(writer)
    written = os.read(reader, 1 << 16).decode()
    os.close(reader)
    report.started()
    blamed, text = report.read()
    assert blamed is None
    if case == "plain":
        assert text.startswith("ValueError: \U0001f600") and 100 < len(text) < 200
        first, *_, last = written.splitlines()
        assert first.startswith("Traceback") and last == "raised on rank 3"
    elif case == "lines":
        assert text == "ValueError: two lines"
    elif case == "no text":
        assert text == "Odd: (its text cannot be made)"
    else:
        assert text == ""
        assert case == "fork" or not (tmp_path / "found").read_bytes()
