"""The runner of all labs, on three small ones: one that fails, one without a conclusion, and one that is right."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from labs import HERE as COURSE
from launch import run_command

LABS = {
    "a_wrong": "print('before', flush=True)\nraise ValueError('on purpose')",
    "b_silent": "",
    "c_right": "lab.conclude(args, 'c_right', '{two} is even.', two=2)",
}


@pytest.fixture
def course(tmp_path):
    """A course of these labs."""
    folder = tmp_path / "examples" / "course"
    folder.mkdir(parents=True)
    for name in ("__main__", "lab", "data"):
        shutil.copy(COURSE / f"{name}.py", folder)
    for name, text in LABS.items():
        (folder / f"{name}.py").write_text(f"import lab\nargs = lab.start('A lab of a test.')\n{text}\n")
    return folder


def run(course, *words):
    """(exit code, standard output, standard error), started from a folder that is empty."""
    empty = course.parents[1] / "empty"
    empty.mkdir()
    done = run_command(sys.executable, course, *words, code=None, cwd=empty)
    return done.returncode, done.stdout, done.stderr


def test_the_others_run_after_a_lab_has_failed(course):
    code, output, errors = run(course, "--quick", "--ranks", "3")
    assert code == 1
    assert "before" in output and "ValueError: on purpose" in errors
    *_, wrong, silent, right, total = output.splitlines()
    assert wrong.split(maxsplit=3)[::3] == ["a_wrong", "FAILED with exit code 1"]
    assert silent.split(maxsplit=3)[::3] == ["b_silent", "FAILED: no conclusion"]
    assert right.split(maxsplit=3)[::3] == ["c_right", "2 is even."]
    assert total.startswith("all ")
    content = json.loads(Path(course.parents[1], "empty", "course-out", "c_right.json").read_text())
    assert content["quick"] is True and content["ranks"] == 3


def test_both_ways_to_start_a_lab():
    for words in (["examples/course/model_parallel.py"], ["-m", "examples.course.model_parallel"]):
        assert "--quick" in run_command(sys.executable, *words, "--help", cwd=COURSE.parents[1]).stdout


def test_a_conclusion_of_an_earlier_run_does_not_count(course):
    out = course.parents[1] / "figures"
    out.mkdir()
    (out / "b_silent.json").write_text('{"conclusion": "an earlier one"}')
    code, output, _ = run(course, "--only", "b_silent", "--out", out)
    assert code == 1 and "FAILED: no conclusion" in output and "a_wrong" not in output


def test_one_of_them(course):
    code, output, _ = run(course, "--only", "c_right", "--out", "figures")
    assert code == 0 and "conclusion: 2 is even." in output
    assert Path(course.parents[1], "empty", "figures", "c_right.json").exists()


def test_a_lab_that_does_not_exist(course):
    code, _, errors = run(course, "--only", "lab9")
    assert code == 2 and "lab9" in errors and "c_right" in errors
