"""`pycollective verify`, `topologies`, `draw` and `doctor` from the command line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from launch import CLI

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


def pycollective(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*CLI, *words], capture_output=True, text=True, timeout=100)


@pytest.fixture
def user_file(tmp_path: Path) -> str:
    file = tmp_path / "mine.py"
    file.write_text(USER_FILE)
    return str(file)


def test_verify_one_of_a_users_file(user_file: str) -> None:
    done = pycollective("verify", f"{user_file}:chain")
    assert done.returncode == 0, done.stderr
    row = next(line for line in done.stdout.splitlines() if line.startswith("chain"))
    assert "allreduce" in row
    assert "1..17" in row
    assert row.rstrip().endswith("✓")
    # in 5 placements: 17 sizes, and on several hosts 1 + 3 + 5 * 4 layouts of 2 to 8 ranks
    assert re.search(r"^205 schedules proved", done.stdout, re.MULTILINE)


def test_verify_takes_parameters(user_file: str) -> None:
    done = pycollective("verify", f"{user_file}:chain(start=1)", "--ranks", "2,5")
    assert done.returncode == 0, done.stderr
    assert "chain(start=1)" in done.stdout
    assert "35 schedules proved" in done.stdout


def test_verify_a_file_names_rank_chunk_and_steps(user_file: str) -> None:
    done = pycollective("verify", user_file, "--ranks", "1-4")
    assert done.returncode == 1
    assert "✓" in done.stdout
    assert "✗" in done.stdout
    assert "deaf allreduce: VerificationError" in done.stderr
    assert re.search(r"rank 0, chunk 0: .*step 0", done.stderr)


def test_verify_reports_the_error_of_a_users_topology(tmp_path: Path) -> None:
    """And continues with the other topologies of the file."""
    file = tmp_path / "broken.py"
    file.write_text(USER_FILE + "            lacking\n")
    done = pycollective("verify", str(file), "--ranks", "1-4")
    assert done.returncode == 1
    assert f"NameError\n  name 'lacking' is not defined ({file}:23)" in done.stderr
    assert "60 schedules proved" in done.stdout  # of the chain


def test_verify_for_several_hosts(tmp_path: Path) -> None:
    """A topology that is right on one host and for two hosts of one rank, but not for two hosts of two ranks."""
    file = tmp_path / "leaders.py"
    file.write_text(LEADERS)
    for words, proved in ((["--hosts", "1"], 5), (["--ranks", "2", "--hosts", "2"], 5)):
        done = pycollective("verify", str(file), *(words if "--ranks" in words else [*words, "--ranks", "4"]))
        assert done.returncode == 0 and f"\n{proved} schedules proved" in done.stdout, done.stderr
    for words in (["--hosts", "2"], []):
        done = pycollective("verify", str(file), "--ranks", "4", *words, "--json")
        assert done.returncode == 1
        assert "leaders allreduce, 4 ranks on 2 hosts, STAGED: rank 0, chunk 0: the result lacks" in done.stderr
        (row,) = json.loads(done.stdout)["rows"]
        assert row["hosts"] == ([] if words else [1])


def test_version() -> None:
    assert re.fullmatch(r"pycollective \d+\.\d+\.\d+(\.dev\d+)?(\+\S+)?\n", pycollective("--version").stdout)


def test_verify_the_packages_own() -> None:
    done = pycollective("verify", "direct", "--ranks", "3", "--collective", "allreduce,broadcast")
    assert done.returncode == 0, done.stderr
    rows = [line.split()[:2] for line in done.stdout.splitlines() if line.startswith("direct")]
    assert rows == [["direct", "allreduce"], ["direct", "broadcast"]]


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["rimg"], "did you mean ring"),
        (["nowhere.py"], "there is no file nowhere.py"),
        (["x[/y]"], "no topology is called 'x[/y]' (there are"),
        (["ring", "--ranks", "0-3"], "from 1 to 65536"),
        (["ring", "--ranks", "many"], "not 'many'"),
        (["ring", "--hosts", "two"], "host counts are written as 2 or 1-3, not 'two'"),
        (["ring", "--ranks", "2-4", "--hosts", "5"], "--hosts 5: 4 ranks are on 1 to 4 hosts"),
        (["ring", "--collective", "allredoce"], "no collective is called 'allredoce'"),
        (["ring", "--collective", "alltoall"], "ring has no alltoall"),
    ],
)
def test_verify_explains_a_wrong_request(words: list[str], answer: str) -> None:
    done = pycollective("verify", *words)
    assert done.returncode == 2
    assert answer in done.stderr


def test_topologies() -> None:
    rows = json.loads(pycollective("topologies", "--json").stdout)
    assert {"ring", "direct"} <= {row["name"] for row in rows}
    direct = next(row for row in rows if row["name"] == "direct")
    assert direct["order"] == "rank"
    assert "allreduce" in direct["collectives"]
    assert "ring" in pycollective("topologies").stdout


def test_draw(tmp_path: Path, user_file: str) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "ring.png"
    done = pycollective("draw", "ring", "--ranks", "4", "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert out.read_bytes().startswith(b"\x89PNG")
    out = tmp_path / "mine.svg"
    done = pycollective("draw", f"{user_file}:chain", "--ranks", "3", "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert "<svg" in out.read_text()
    done = pycollective("draw", "rimg", "--out", str(out))
    assert done.returncode == 2
    assert "did you mean ring" in done.stderr


def test_doctor_for_people() -> None:
    done = pycollective("doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    for word in (
        "cores",
        "/dev/shm",
        "memfd",
        "huge pages",
        "pidfd",
        "mpi4py",
        "CUDA driver",
        "NCCL",
        "numba",
        "torch",
    ):
        assert word in done.stdout, word
    assert "check failed" not in done.stdout


def test_doctor_for_machines() -> None:
    found = json.loads(pycollective("doctor", "--json").stdout)
    assert found["pycollective"]["native core"]["ok"] is True
    assert found["this process"]["started by"]["value"] == "alone"
    path = next(group for name, group in found.items() if name.startswith("an allreduce"))
    assert path["tried"]["value"] == "right"
    assert "direct" in path["64 MiB"]["value"]
    assert "zero-copy" in path["64 MiB"]["value"]
    for group in found.values():
        for finding in group.values():
            assert set(finding) == {"value", "ok", "why"}
            assert finding["ok"] is True or finding["why"] or finding["value"], "a missing item states why"
    for name in ("CUDA driver", "NCCL", "GPU path"):
        finding = found["GPU"][name]
        assert finding["ok"] or finding["why"]


def test_doctor_reports_why_there_is_no_gpu_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Message of a call on a GPU array."""
    from pycollective.cli.doctor import doctor
    from pycollective.comm.cuda import runtime
    from pycollective.errors import CommunicatorError

    monkeypatch.setitem(sys.modules, "pycollective._cuda", None)
    path = next(f for f in doctor.examine() if f.name == "GPU path")
    assert path.ok is None
    assert "nvcc" in path.why and "pip install" in path.why
    with pytest.raises(CommunicatorError) as raised:
        runtime.load()
    assert path.why in str(raised.value)


def test_doctor_reports_a_missing_core(monkeypatch: pytest.MonkeyPatch) -> None:
    from pycollective.cli.doctor import doctor

    monkeypatch.setitem(sys.modules, "pycollective._core", None)
    core = next(f for f in doctor.examine() if f.name == "native core")
    assert core.ok is False
    assert "install" in core.why


def test_doctor_tries_and_reports_what_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    from pycollective.cli.doctor import doctor

    monkeypatch.setattr(doctor, "_TRIAL", "raise SystemExit('no luck today')")
    tried = next(f for f in doctor.examine() if f.name == "tried")
    assert tried.ok is False
    assert "no luck today" in tried.why


def test_doctor_knows_an_mpirun_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    from pycollective.cli.doctor import doctor

    monkeypatch.setenv("PMIX_RANK", "0")
    assert next(f for f in doctor.examine() if f.name == "started by").value == "mpi"


def test_doctor_reports_the_binding(monkeypatch: pytest.MonkeyPatch) -> None:
    """And whether the ranks that it starts have a core each."""
    from pycollective.cli.doctor import doctor

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


def test_bench_is_attached() -> None:
    done = pycollective("bench", "--help")
    assert done.returncode == 0, done.stderr
    assert "--topology" in done.stdout
    assert "bench" in pycollective("--help").stdout


def test_help_says_what_is_meant_where_nothing_is_given() -> None:
    assert "one per core" in re.sub(r"\s+", " ", pycollective("run", "--help").stdout)
    assert "all it has" in re.sub(r"\s+", " ", pycollective("verify", "--help").stdout)


def test_no_arguments_show_help() -> None:
    assert "run" in pycollective().stdout + pycollective().stderr
