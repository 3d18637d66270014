"""`pycollective verify`, `topologies` and `doctor` from the command line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from launch import CLI, run_command
from pycollective.cli.doctor import doctor
from pycollective.cli.doctor.findings import Finding, publish
from pycollective.comm.cuda import runtime
from pycollective.errors import CommunicatorError

USER_FILE = '''
from pycollective.schedule import topology

@topology("chain")
class Chain:
    """Up the chain and down again."""
    start: int = 0

    def allreduce(self, p):
        for c in p.chunks(1):
            for r in range(1, p.size):
                p[self.start + r, c] += p[self.start + r - 1, c]
            for r in range(p.size - 1, 0, -1):
                p[self.start + r - 1, c] = p[self.start + r, c]

@topology("deaf")
class Deaf:
    """Forgets to tell the others."""
    def allreduce(self, p):
        for c in p.chunks(1):
            for r in range(1, p.size):
                p[r, c] += p[r - 1, c]
'''

LEADERS = '''
from pycollective.schedule import topology

@topology("leaders")
class Leaders:
    """Forgets the ranks that do not lead their host."""
    def allreduce(self, p):
        leaders = [ranks[0] for ranks in p.hosts] if len(p.hosts) > 1 else p.ranks
        for c in p.chunks(1):
            p[p.ranks, c] = p.sum(p[r, c] for r in leaders)
'''


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path.parent)


def pycollective(*words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    return run_command(*CLI, *words, code=code)


def test_verify_one_of_a_users_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(USER_FILE)
    written = pycollective("verify", f"{file}:chain").stdout
    # in 5 placements: 17 sizes, and on several hosts 1 + 3 + 5 * 4 layouts of 2 to 8 ranks
    assert re.search(r"^chain +allreduce .*1\.\.17.* ✓ *$", written, re.MULTILINE), written
    assert re.search(r"^205 schedules proved", written, re.MULTILINE)
    written = pycollective("verify", f"{file}:chain(start=1)", "--ranks", "2,5").stdout
    assert "chain(start=1)" in written and "35 schedules proved" in written


def test_verify_reports_the_error_of_a_users_topology(tmp_path: Path) -> None:
    """And continues with the other topologies of the file."""
    file = tmp_path / "broken.py"
    file.write_text(USER_FILE + "            lacking\n")
    done = pycollective("verify", str(file), "--ranks", "1-4", code=1)
    assert f"NameError\n  name 'lacking' is not defined ({file}:23)" in done.stderr
    assert "60 schedules proved" in done.stdout  # of the chain


def test_verify_names_the_numbers_of_ranks_that_a_topology_does_not_declare(tmp_path: Path) -> None:
    file = tmp_path / "even.py"
    file.write_text(
        'import pycollective as pc\n@pc.topology("even")\nclass Even:\n  def allreduce(self, p):\n'
        "    for c in p.chunks(1):\n      p[p.ranks, c] = p.sum(p[q, c] for q in range(p.size // 2 * 2))\n"
    )
    done = pycollective("verify", str(file), "--ranks", "1-6", code=1)
    assert "p.sum() of nothing" in done.stderr and "correct for 2, 4, 6 ranks: " in done.stderr


def test_verify_for_several_hosts(tmp_path: Path) -> None:
    """A topology that is right on one host and for two hosts of one rank, but not for two hosts of two ranks."""
    file = tmp_path / "leaders.py"
    file.write_text(LEADERS)
    for ranks, hosts in (("4", "1"), ("2", "2")):
        assert "\n5 schedules proved" in pycollective("verify", str(file), "--ranks", ranks, "--hosts", hosts).stdout
    for words, proved in ((["--hosts", "2"], []), ([], [1])):
        done = pycollective("verify", str(file), "--ranks", "4", *words, "--json", code=1)
        assert "leaders allreduce, 4 ranks on 2 hosts, STAGED: rank 0, chunk 0: the result lacks" in done.stderr
        (row,) = json.loads(done.stdout)["rows"]
        assert row["hosts"] == proved


def test_version() -> None:
    assert re.fullmatch(r"pycollective \d+\.\d+\.\d+(\.dev\d+)?(\+\S+)?\n", pycollective("--version").stdout)


def test_verify_the_packages_own() -> None:
    written = pycollective("verify", "direct", "--ranks", "3", "--collective", "allreduce,broadcast").stdout
    rows = [line.split()[:2] for line in written.splitlines() if line.startswith("direct")]
    assert rows == [["direct", "allreduce"], ["direct", "broadcast"]]


def test_topologies() -> None:
    rows = {row["name"]: row for row in json.loads(pycollective("topologies", "--json").stdout)}
    assert {"ring", "direct"} <= set(rows)
    assert rows["direct"]["order"] == "rank" and "allreduce" in rows["direct"]["collectives"]


def test_doctor_for_people() -> None:
    written = pycollective("doctor").stdout
    groups = ("cores", "/dev/shm", "memfd", "huge pages", "pidfd", "mpi4py", "CUDA driver", "NCCL", "numba", "torch")
    assert [word for word in groups if word not in written] == []
    assert "check failed" not in written
    assert written.endswith("pycollective works here; – marks what is optional and absent\n")
    assert "PYCOLLECTIVE_SCRATCH" not in written and "settings at their defaults, listed by --settings" in written
    assert "PYCOLLECTIVE_SCRATCH" in pycollective("doctor", "--settings").stdout


def test_doctor_keeps_paths_whole(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    path = "/a-folder/" * 7 + "file-of-a-library.so.1"
    found = [Finding("g", "a name of some length", path), Finding("g", "b", "found", why=f"in {path} [of pip]")]
    assert publish([*found, Finding("h", "c", "bad", False)], None, ("h",)) == 1
    assert capsys.readouterr().out.splitlines() == [
        "  g", "✓   a name of some length", f"    {path}",
        "✓   b                      found (in", f"    {path}", " " * 27 + "[of pip])",
        "  1 h, listed by --h", "broken: c",
    ]  # fmt: skip


def test_doctor_for_machines() -> None:
    found = json.loads(pycollective("doctor", "--json").stdout)
    assert found["pycollective"]["native core"]["ok"] is True
    assert found["this process"]["started by"]["value"] == "alone"
    path = next(group for name, group in found.items() if name.startswith("an allreduce"))
    assert path["tried"]["value"] == "right"
    assert "direct" in path["64 MiB"]["value"] and "zero-copy" in path["64 MiB"]["value"]
    for group in found.values():
        for finding in group.values():
            assert set(finding) == {"value", "ok", "why"}
            assert finding["ok"] is True or finding["why"] or finding["value"], "a missing item states why"
    assert all(found["GPU"][name]["ok"] or found["GPU"][name]["why"] for name in ("CUDA driver", "NCCL", "GPU path"))


def examined() -> dict[str, Finding]:
    return {finding.name: finding for finding in doctor.examine()}


def test_doctor_reports_why_there_is_no_gpu_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Message of a call on a GPU array."""
    monkeypatch.setitem(sys.modules, "pycollective._cuda", None)
    path = examined()["GPU path"]
    assert path.ok is None
    assert "nvcc" in path.why and "pip install" in path.why
    with pytest.raises(CommunicatorError) as raised:
        runtime.load()
    assert path.why in str(raised.value)


def test_doctor_reports_a_missing_core_a_failed_trial_and_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pycollective._core", None)
    monkeypatch.setattr(doctor, "_TRIAL", "raise SystemExit('no luck today')")
    monkeypatch.setenv("PMIX_RANK", "0")
    found = examined()
    assert found["native core"].ok is False and "install" in found["native core"].why
    assert found["tried"].ok is False and "no luck today" in found["tried"].why
    assert found["started by"].value == "mpi"


def test_doctor_reports_the_binding(monkeypatch: pytest.MonkeyPatch) -> None:
    """And whether the ranks that it starts have a core each."""
    monkeypatch.setattr(os, "cpu_count", lambda: 1 + len(cores))
    monkeypatch.setattr(doctor, "_PATH_SIZES", (8,))
    cores = os.sched_getaffinity(0)
    core = min(cores)
    try:
        os.sched_setaffinity(0, {core})
        found = [*doctor._job(), *doctor._paths()]
    finally:
        os.sched_setaffinity(0, cores)
    assert next(f for f in found if f.name == "binding").value == f"to core {core} of {1 + len(cores)}"
    waiting = next(f for f in found if f.name == "cores").value
    assert waiting == f"this rank may use {core}; not every rank has one of its own: no rank spins, they yield"


def test_help_says_what_is_meant_where_nothing_is_given() -> None:
    assert "one per core" in re.sub(r"\s+", " ", pycollective("run", "--help").stdout)
    assert "all it has" in re.sub(r"\s+", " ", pycollective("verify", "--help").stdout)
    nothing = run_command(*CLI, code=None)
    assert "run" in nothing.stdout + nothing.stderr
