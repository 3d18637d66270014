"""The checker of the assessment: what it reports for scripts that fail, hang, or are converted wrongly.

The scripts with torch and Keras, which take long, run only if COURSE is set.
"""

from __future__ import annotations

import contextlib
import importlib
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from labs import long
from launch import find_mpirun, needs, run_command

ROOT = Path(__file__).parents[2]
COURSE = ROOT / "examples" / "course"
LAUNCHERS = pytest.mark.parametrize(
    "words", [[], pytest.param(["--mpi"], marks=pytest.mark.skipif(not find_mpirun(), reason="no mpirun"))], ids=str
)
RIGHT = "print('training accuracy 0.99  validation accuracy 0.98')"


def assess(script, *words):
    """(exit code, the lines of the checks as {name: text})."""
    command = [sys.executable, "-m", "examples.course.assess", script, "--ranks", "2", *words]
    done = run_command(*command, code=None, timeout=280, cwd=ROOT)
    checks = ("runs", "distributed", "partition", "broadcast", "checkpoint", "accuracy")
    lines = [line.split(maxsplit=1) for line in done.stdout.splitlines() if line.startswith(checks)]
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.returncode, dict(lines)


def written(tmp_path, text):
    script = tmp_path / "student.py"
    script.write_text(text)
    return script


def test_a_serial_script_is_not_distributed(tmp_path):
    code, checks = assess(written(tmp_path, f"open('model.bin', 'w').close()\n{RIGHT}"))
    assert code == 1
    assert checks["distributed"].startswith("FAILED  it never calls hvd.init(): these are 2 serial runs")
    assert checks["checkpoint"] == "FAILED  rank 1 writes model.bin: only rank 0 may, `if hvd.rank() == 0:`"
    assert checks["accuracy"] == "passed" and checks["partition"] == "-"


FAILING = {  # a script that fails -> what is reported
    "x = 1\ny = x / 0": "student.py, line 2: ZeroDivisionError: division by zero",
    "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)": "the job ended with exit code",
    f"import os\n{RIGHT}\nos._exit(0)": "ended without returning from the script",
    "def f(:": "SyntaxError",
    "x = 1": "rank 0 prints nothing",
    "import sys\nsys.exit('no data here')": "student.py, line 2: SystemExit: no data here",
}


@pytest.mark.parametrize("text", FAILING)
@LAUNCHERS
def test_a_script_that_crashes(tmp_path, text, words):
    code, checks = assess(written(tmp_path, text), *words)
    assert code == 1 and FAILING[text] in checks["runs"], checks
    assert checks["accuracy"] == "-"


def test_a_script_that_waits_forever_is_ended_with_its_children(tmp_path):
    """Under both launchers at the same time: the test takes as long as the script may."""
    ways = [[], ["--mpi"]] if find_mpirun() else [[]]
    child = "import time; time.sleep(271828)"
    text = f"""import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "{child}"], start_new_session=True)
while True:
    time.sleep(0.1)
"""
    script = written(tmp_path, text)
    with ThreadPoolExecutor() as pool:
        found = list(pool.map(lambda words: assess(script, "--minutes", "0.1", *words), ways))
    for code, checks in found:
        assert code == 1 and "rank 0 is at line 4, rank 1 is at line 4" in checks["runs"], checks
    assert not running(child) and not running("student.py")


def test_a_script_of_which_one_rank_waits_for_another_that_has_ended(tmp_path):
    text = f"""import pycollective as pc
comm = pc.init()
if comm.rank == 0:
    comm.recv(__import__("numpy").empty(3), 1)
{RIGHT}
"""
    code, checks = assess(written(tmp_path, text), "--minutes", "0.3")
    assert code == 1 and "rank 0 " in checks["runs"] and "line 4" in checks["runs"], checks
    assert not running("student.py")


def test_the_checker_ends_the_ranks_if_it_is_ended_itself(tmp_path):
    script = written(tmp_path, "import time\nprint('started', flush=True)\ntime.sleep(600)")
    command = [sys.executable, "-m", "examples.course.assess", script, "--ranks", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert "started" in process.stdout.readline()
        process.terminate()
        process.stdout.read()
    assert process.returncode == 143
    assert not running(str(script))


def running(words):
    """Whether the command line of a process of this machine contains these words."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if words.encode() in path.read_bytes().replace(b"\0", b" "):
                return True
    return False


@long
@pytest.mark.torch
@pytest.mark.parametrize("name", ["assessment_solution", "assessment_keras_solution"])
@LAUNCHERS
def test_the_solution_passes(tmp_path, name, words):
    needs("keras" if "keras" in name else "torch")
    code, checks = assess(written(tmp_path, (COURSE / f"{name}.py").read_text()), *words)
    assert code == 0 and set(checks.values()) == {"passed"}, checks


WRONG = {  # what is removed from the solution -> the check that fails, and what it reports
    ("assessment_solution", "hvd.broadcast_"): ("broadcast", "rank 0's state is never broadcast"),
    ("assessment_solution", "sampler=sampler"): ("partition", "over all 1348 images"),
    ("assessment_solution", "if hvd.rank() == 0:  # hvd: only"): ("checkpoint", "rank 1 writes checkpoint.pt"),
    ("assessment_keras_solution", "BroadcastGlobal"): ("broadcast", "rank 0's state is never broadcast"),
    ("assessment_keras_solution", "[mine]"): ("partition", "images"),
    ("assessment_keras_solution", "if hvd.rank() == 0:  # hvd: only"): ("checkpoint", "rank 1 writes checkpoint.keras"),
}


@long
@pytest.mark.torch
@pytest.mark.parametrize(("name", "removed"), WRONG)
def test_wrong_conversions_are_told_what_is_wrong(tmp_path, name, removed, monkeypatch):
    needs(*(["keras", "jax"] if "keras" in name else ["torch"]))
    monkeypatch.setenv("KERAS_BACKEND", "jax")  # loads in a fifth of TensorFlow's time
    lines = (COURSE / f"{name}.py").read_text().splitlines()
    assert any(removed in line for line in lines)
    if removed.startswith("if "):
        changed = [line.replace("hvd.rank() == 0", "True") if removed in line else line for line in lines]
    elif removed == "sampler=sampler":
        changed = [line.replace(removed, "shuffle=True") for line in lines]
    elif removed == "[mine]":
        changed = [line.replace(removed, "") for line in lines]
    elif removed == "BroadcastGlobal":
        changed = ["callbacks = []" if removed in line else line for line in lines]
    else:
        changed = [line for line in lines if not line.startswith(removed)]
    script = written(tmp_path, "\n".join(changed))
    code, checks = assess(script, "--epochs", "2", "--training", "0", "--validation", "0")
    check, text = WRONG[name, removed]
    assert code == 1 and checks[check].startswith("FAILED") and text in checks[check], checks
    assert [name for name in checks if checks[name] != "passed"] == [check], checks


def test_judge_of_gradients_that_are_equal_and_parameters_that_differ():
    sys.path.append(str(ROOT))  # after the installed package
    judge, run_of = (importlib.import_module(f"examples.course.assess.{name}") for name in ("judge", "run"))
    record = {"size": 2, "steps": 3, "gradients": ["a", "b"], "broadcasts": 1, "parameters": ["p"], "images": 10,
              "longest": 5, "files": [["/m", "written"]], "error": ""}  # fmt: skip
    other = {**record, "gradients": ["c", "b"], "parameters": ["q"], "files": [["/m", "read"]]}
    run = run_of.Run(2, 0, 1.0, {0: record, 1: other}, {0: "training accuracy 0.5, validation accuracy: 0.7"})
    found = dict(judge.judge(run, Path("s.py"), (0.6, 0.6, 1)))
    assert found == {
        "partition": "in step 1 ranks 0, 1 have equal gradients before the reduction, from equal images",
        "broadcast": "in the end the parameters of rank 1 are not those of rank 0",
        "checkpoint": "rank 1 reads m: let rank 0 read and broadcast it",
        "accuracy": "the training accuracy is 0.5000, the target 0.6",
    }
    fewer = run_of.Run(2, 0, 1.0, {0: record, 1: {**other, "steps": 4}}, run.printed)
    assert "different numbers of steps: [3, 4]" in dict(judge.judge(fewer, Path("s.py"), (0, 0, 1)))["distributed"]
