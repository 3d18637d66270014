"""A rank's place is taken once: not by a helper that has inherited the launcher's variables."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from launch import CLI, run_command

PROGRAM = """
import multiprocessing, os, subprocess, sys, time
import numpy as np
import pycollective as pc

role, rank = sys.argv[1], os.environ["PYCOLLECTIVE_RANK"]


def join(role):
    try:
        total = pc.init().allreduce(np.ones(1) if role == "rank" else np.full(1, 1000.0), timeout=30)
        text = f"{role} {rank} {total[0]:g}"
    except pc.BootstrapError as error:
        text = f"{role} {rank} {error}"
    os.write(1, f"{text}\\n".encode())


def start(role, *words):
    return subprocess.Popen([*words, sys.executable, __file__, role], stdin=subprocess.PIPE)


def until_it_has_ended(helper):  # busy: not waiting for it
    while helper.poll() is None:
        pass


if __name__ == "__main__":
    if role == "before":
        until_it_has_ended(start("helper"))
        join("rank")
    elif role == "in a shell":
        until_it_has_ended(start("helper", "sh", "-c", '"$@"; true', "sh"))
        join("rank")
    elif role == "spawned":
        helper = multiprocessing.get_context("spawn").Process(target=join, args=("helper",))
        helper.start()
        while os.waitid(os.P_PID, helper.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            pass
        join("rank")
    elif role == "after":
        join("rank")
        start("helper").wait()
    elif role == "after shutdown":
        join("rank")
        pc.shutdown()
        start("rank").wait()
    elif role == "wrapper":
        start("rank").wait()
    elif role == "replaced":
        os.execv(sys.executable, [sys.executable, __file__, "rank"])
    else:
        join(role)
"""


def lines(folder: Path, *words: str) -> list[str]:
    (folder / "program.py").write_text(PROGRAM)
    return sorted(run_command(*CLI, "run", "-np", "2", *words, cwd=folder).stdout.splitlines())


@pytest.mark.parametrize("role", ["before", "in a shell", "spawned", "after"])
def test_a_helper_of_a_rank_is_refused(role: str, tmp_path: Path) -> None:
    first, second, *ranks = lines(tmp_path, "program.py", role)
    assert ranks == ["rank 0 2", "rank 1 2"]
    for number, text in enumerate((first, second)):
        words = rf"helper {number} process (\d+) cannot be rank {number}, which process (\d+) is: it has inh"
        found = re.match(words, text)
        assert found and found[1] != found[2], text


@pytest.mark.parametrize("role", ["wrapper", "replaced", "rank"])
def test_a_rank_may_run_under_another_program(role: str, tmp_path: Path) -> None:
    assert lines(tmp_path, "program.py", role) == ["rank 0 2", "rank 1 2"]


def test_programs_one_after_the_other(tmp_path: Path) -> None:
    assert lines(tmp_path, "program.py", "after shutdown") == ["rank 0 2"] * 2 + ["rank 1 2"] * 2
    twice = f'"{sys.executable}" program.py rank; "{sys.executable}" program.py rank'
    assert lines(tmp_path, "sh", "-c", twice) == ["rank 0 2"] * 2 + ["rank 1 2"] * 2
