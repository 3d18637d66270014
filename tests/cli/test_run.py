"""`pycollective run`: exit codes, signals, output, and that no process outlives the job."""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from processes import alive
from speed import until

from launch import CLI, run_command
from pycollective.comm.host.cores import cpu_quota

from .ranks import pids, python

RUN = [*CLI, "run"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # the launcher reports it if unset


def run(*words: str, code: int | None = None, **options: Any) -> subprocess.CompletedProcess[str]:
    return run_command(*RUN, *words, code=code, timeout=30, **options)


def test_a_program_in_the_root_of_a_clone(tmp_path: Path) -> None:
    """Python finds the sources there, which lack the compiled core, before the installed package."""
    clone = tmp_path / "clone"
    clone.mkdir()
    (clone / "CMakeLists.txt").touch()
    (clone / "pycollective").symlink_to(Path(__file__).parents[2] / "pycollective")
    program = clone / "program.py"
    program.write_text("import numpy as np, pycollective as pc\nprint(pc.init().allreduce(np.ones(1)))")
    done = run("-np", "2", str(program))
    assert done.stdout == "[2.]\n" * 2, done.stderr


def test_no_rank_alone_is_blamed_for_calls_that_differ() -> None:
    code = "import numpy as np, pycollective as pc\npc.init().allreduce(np.ones(2 + rank))"
    last = run("-np", "2", *python(code)).stderr.splitlines()[-1]
    assert re.fullmatch(r"pycollective run: the ranks' calls differ; rank [01] .*: MismatchError: .*", last)


NAMES = [f"PYCOLLECTIVE_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")]
NAMES += ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "OMP_NUM_THREADS"]
NAMES += ["MASTER_KEY", "ROLE_ARN"]
# Left by other launchers, or set by a user.
STALE = {"RANK": "5", "WORLD_SIZE": "7", "LOCAL_RANK": "3", "MASTER_ADDR": "elsewhere", "MASTER_PORT": "1"} | {
    "TORCHELASTIC_USE_AGENT_STORE": "True", "GROUP_RANK": "2", "PMI_RANK": "4", "PMI_SIZE": "9", "HOROVOD_RANK": "6",
    "OMPI_COMM_WORLD_RANK": "8", "SLURM_PROCID": "3", "SLURM_NTASKS": "4",
}  # fmt: skip


def test_our_variables_those_of_torch_and_none_of_other_launchers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS")
    for name, value in STALE.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_KEY", "ours")
    monkeypatch.setenv("ROLE_ARN", "ours")
    others = sorted(STALE.keys() - {*NAMES, "MASTER_PORT"})
    line = f"' '.join([os.environ.get(n, '-') for n in {NAMES}] + [n for n in {others} if n in os.environ])"
    done = run("-np", "2", *python(f"os.write(1, ({line} + chr(10)).encode())"), code=0)  # in one piece
    common = "127.0.0.1 1 ours ours"
    assert sorted(done.stdout.splitlines()) == [f"0 2 0 2 0 2 0 2 {common}", f"1 2 1 2 1 2 1 2 {common}"]
    (report,) = done.stderr.splitlines()
    assert report.startswith("pycollective run: OMP_NUM_THREADS=1 for each of 2 ranks")
    alone = run("-np", "1", *python("print(os.environ.get('OMP_NUM_THREADS'))"))  # as under torchrun
    assert (alone.stdout, alone.stderr) == ("None\n", "")


HELD = """
import socket
port = int(os.environ["MASTER_PORT"])
if rank == 0:
    with socket.socket() as impolite:  # the kernel does not assign this port as a free one
        try:
            impolite.bind(("127.0.0.1", port))
            print("taken")
        except OSError:
            pass
    with socket.socket(socket.AF_INET6) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("::", port))  # like torch's TCPStore
        server.listen()
        socket.create_connection(("127.0.0.1", port), 5).close()
        print("free")
"""


def test_the_master_port_is_held_and_can_be_opened() -> None:
    done = run("-np", "2", *python(HELD))
    assert (done.stdout, done.stderr) == ("free\n", "")


def test_unknown_settings_are_reported_once_with_the_nearest_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYCOLLECTIVE_TIMOUT", "3")
    code = "import pycollective\nos.environ['PYCOLLECTIVE_SPIN'] = '1'\npycollective.init().barrier()"
    lines = [line for line in run("-np", "2", *python(code)).stderr.splitlines() if "PYCOLLECTIVE_" in line]
    assert len(lines) == 2, lines
    assert lines[0].endswith("PYCOLLECTIVE_TIMOUT is not a setting of pycollective and has no effect; "
                             "did you mean PYCOLLECTIVE_TIMEOUT?")  # fmt: skip
    assert "RuntimeWarning: PYCOLLECTIVE_SPIN is not" in lines[1] and "PYCOLLECTIVE_SPIN_US?" in lines[1]


def test_two_jobs_have_two_rendezvous() -> None:
    code = "print(os.environ['PYCOLLECTIVE_RENDEZVOUS'])"
    one, other = (set(run("-n", "2", *python(code)).stdout.split()) for _ in range(2))
    assert len(one) == len(other) == 1 and one != other


def test_a_script_is_run_by_this_python(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys; print(sys.executable, sys.argv[1:])")
    done = run("-np", "1", str(script), "--tag", "-np", "7")  # arguments after the script belong to the script
    assert done.stdout == f"{sys.executable} ['--tag', '-np', '7']\n"


def test_first_failure_ends_the_job_and_is_named() -> None:
    done = run("-np", "3", *python("rank == 1 and sys.exit(7)\ntime.sleep(600)"), code=7)
    (report,) = done.stderr.splitlines()  # the stopped ranks are not reported
    assert "rank 1 (pid " in report and "exited with code 7" in report


def test_a_killed_rank_is_named_with_its_signal() -> None:
    code = "rank == 1 and os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(60)"
    done = run("-np", "2", *python(code), code=128 + signal.SIGKILL)
    assert "was killed by SIGKILL" in done.stderr


def test_a_rank_that_ignores_sigterm_is_killed() -> None:
    code = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if rank == 0:
    time.sleep(0.5)
    sys.exit(3)
time.sleep(60)
"""
    hurry = "from pycollective.cli import main; from pycollective.cli.launch import job; job.KILL_AFTER = 0.5"
    run_command(sys.executable, "-c", f"{hurry}; main.app()", "run", "-np", "2", *python(code), code=3)


def test_grace_lets_the_others_finish() -> None:
    code = "rank == 1 and sys.exit(7)\ntime.sleep(0.5)\nprint('done', flush=True)"
    assert run("-np", "2", *python(code)).stdout == ""
    done = run("-np", "2", "--grace", "20", *python(code))
    assert (done.stdout, done.returncode) == ("done\n", 7)


MASK = python("os.write(1, f'{sorted(os.sched_getaffinity(0))}\\n'.encode())")
BOUND = """
import json, pycollective
comm = pycollective.init()
found = [sorted(os.sched_getaffinity(0)), comm.explain("barrier", 0).waiting]
os.write(1, (json.dumps(found) + chr(10)).encode())
"""


def test_bound_ranks_have_a_core_each() -> None:
    cores = os.sched_getaffinity(0)
    ranks = min(len(cores), 4)
    lines = run("-np", str(ranks), "--bind", *python(BOUND)).stdout.splitlines()
    bound = [json.loads(line) for line in lines]
    assert all(len(mask) == 1 and cores.issuperset(mask) for mask, _ in bound)
    assert len({mask[0] for mask, _ in bound}) == ranks
    for (core,), waiting in bound:  # which the ranks find
        assert waiting.startswith(f"this rank may use {core}; ")
        assert ("not every rank" in waiting) == (ranks > (cpu_quota() or ranks))
    assert run("-np", "1", *MASK).stdout == f"{sorted(cores)}\n"


def test_ranks_are_not_bound_to_the_same_core() -> None:
    cores = len(os.sched_getaffinity(0))
    refused = run("-np", str(cores + 1), "--bind", *MASK)
    assert (refused.returncode, refused.stdout) == (2, "")
    (line,) = refused.stderr.splitlines()
    assert f"{cores + 1} ranks need {cores + 1} cores, and this process may use {cores} (" in line


def test_missing_command() -> None:
    assert "cannot start 'no-such-program'" in run("-np", "2", "no-such-program", code=127).stderr


def test_descriptors_for_many_ranks() -> None:
    """The launcher raises its soft limit; where the hard one is too low, it names it."""
    for kind, code in (("S", 0), ("", 127)):
        limited = ["sh", "-c", f'ulimit -{kind}n 32; exec "$@"', "sh"]
        done = run_command(*limited, *RUN, "-np", "12", "true", code=code)
    assert "its process may open 32 (`ulimit -n`)" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("tag", [("--tag",), ()])
def test_lines_of_ranks_do_not_tear(tag: tuple[str, ...]) -> None:
    """Nor do those that a rank writes in parts, as an unbuffered Python does; without tags they are as written."""
    code = """
for i in range(200):
    os.write(1, b'%d abc' % rank)
    os.write(1, b'def %d\\n' % i)
os.write(2, b'last, unended')
time.sleep(0.3)  # it is passed on before its end is known
"""
    done = run("-np", "3", *tag, *python(code), code=0)
    lines = done.stdout.splitlines()
    for rank in range(3):
        start = f"[{rank}] {rank} " if tag else f"{rank} "
        assert [x for x in lines if x.startswith(start)] == [f"{start}abcdef {i}" for i in range(200)]
    assert len(lines) == 600
    starts = [f"[{rank}] " if tag else "" for rank in range(3)]
    assert sorted(done.stderr.splitlines()) == [f"{start}last, unended" for start in starts]
    assert done.stderr.endswith("\n") == bool(tag)


@pytest.mark.parametrize(("variable", "value", "coloured"), [("TERM", "xterm", True), ("NO_COLOR", "1", False)])
def test_tags_are_colored_on_a_color_terminal(variable: str, value: str, coloured: bool) -> None:
    ours, theirs = os.openpty()
    environment = {name: text for name, text in os.environ.items() if name not in ("NO_COLOR", "TERM")}
    subprocess.run([*RUN, "-np", "1", "--tag", "echo", "word"], stdout=theirs, env=environment | {variable: value})
    os.close(theirs)
    written = os.read(ours, 1000)
    os.close(ours)
    assert (b"\033[" in written) == coloured
    assert b"[0] " in written and b"word" in written


def test_only_rank_zero_reads_standard_input() -> None:
    done = run("-np", "2", "--tag", *python("print(repr(sys.stdin.read()))"), input="hello")
    assert sorted(done.stdout.splitlines()) == ["[0] 'hello'", "[1] ''"]


def start(*words: str, ranks: int = 2, **options: Any) -> tuple[subprocess.Popen[str], list[int]]:
    """A launcher of a job that continues, and the pids that its ranks have written."""
    process = subprocess.Popen(words, stderr=subprocess.DEVNULL, text=True, **options)
    return process, pids(ranks)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_are_forwarded(number: signal.Signals) -> None:
    code = f"""
def handler(n, frame):
    open(f"got{{rank}}", "w").write(str(n))
    sys.exit(5)
signal.signal({int(number)}, handler)
write_pids(os.getpid())
while True: time.sleep(0.01)
"""
    not_ignored = functools.partial(signal.signal, number, signal.SIG_DFL)  # as under nohup
    process, found = start(*RUN, "-np", "2", *python(code), preexec_fn=not_ignored)
    process.send_signal(number)
    assert process.wait(20) == 5
    assert [Path(f"got{rank}").read_text() for rank in range(2)] == [str(int(number))] * 2
    assert not any(map(alive, found))


@pytest.mark.parametrize("hosts", [False, True])
def test_other_signals_are_passed_on_and_the_job_continues(hosts: bool) -> None:
    numbers = [signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT, signal.SIGWINCH, signal.SIGALRM, signal.SIGRTMIN + 3]
    code = f"""
got = []
for number in {[int(number) for number in numbers]}:
    signal.signal(number, lambda n, frame: got.append(n))
write_pids(os.getpid())
while len(got) < {len(numbers)}: time.sleep(0.01)
os.write(1, (' '.join(map(str, got)) + '\\n').encode())
"""
    Path("rsh").write_text('shift\nexec sh -c "$*"\n')
    where = ["-H", "a:1,b:1", "--rsh", "sh ./rsh"] if hosts else ["-np", "2"]
    process, _ = start(*RUN, *where, *python(code), stdout=subprocess.PIPE)
    for number in numbers:
        process.send_signal(number)
        time.sleep(0.05)  # a signal that is pending twice may arrive once; different ones in any order
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    assert [sorted(line.split()) for line in out.splitlines()] == [sorted(str(int(n)) for n in numbers)] * 2


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


UNTIL_THE_END = python("write_pids(os.getpid())\nwhile not os.path.exists('end'): time.sleep(0.01)")


def test_a_stop_at_the_terminal_stops_the_ranks_too() -> None:
    process, found = start(*RUN, "-np", "2", *UNTIL_THE_END)
    process.send_signal(signal.SIGTSTP)
    until(lambda: [state(pid) for pid in [process.pid, *found]] == ["T"] * 3)
    process.send_signal(signal.SIGCONT)
    until(lambda: "T" not in [state(pid) for pid in [process.pid, *found]])
    Path("end").touch()
    assert process.wait(20) == 0


def test_an_ignored_hangup_remains_ignored() -> None:
    process, _ = start("nohup", *RUN, "-np", "1", *UNTIL_THE_END, ranks=1)
    process.send_signal(signal.SIGHUP)
    Path("end").touch()
    assert process.wait(20) == 0


def test_a_second_signal_kills() -> None:
    code = "signal.signal(signal.SIGINT, signal.SIG_IGN)\nwrite_pids(os.getpid())\ntime.sleep(60)"
    process, found = start(*RUN, "-np", "2", *python(code))
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    started = time.monotonic()
    assert process.wait(20) == 128 + signal.SIGKILL
    assert time.monotonic() - started < 2
    assert not any(map(alive, found))


# Each rank has a child process, like one of a shell script or a data loader.
FAMILY = """
child = os.fork()
if child == 0:
    time.sleep(60)
    os._exit(0)
write_pids(os.getpid(), child)
"""
FAILURE = """
while rank and not os.path.exists("pids0"): time.sleep(0.01)
time.sleep(0.2) if rank else None
rank and os._exit(3)
time.sleep(60)
"""
ENDS = {  # what happens then, or what the launcher receives -> its exit code
    FAILURE: 3,
    "os._exit(0)": 0,
    signal.SIGTERM: 128 + signal.SIGTERM,
    signal.SIGKILL: -signal.SIGKILL,
}


@pytest.mark.parametrize("how", ENDS, ids=["failure", "success", "SIGTERM", "SIGKILL of the launcher"])
def test_no_orphans(how: str | signal.Signals) -> None:
    process, found = start(*RUN, "-np", "2", *python(FAMILY + (how if isinstance(how, str) else "time.sleep(60)")))
    assert len(found) == 4
    if isinstance(how, signal.Signals):
        process.send_signal(how)
    assert process.wait(20) == ENDS[how]
    until(lambda: not any(map(alive, found)), 3)


def test_a_stray_process_that_holds_a_pipe_does_not_block_the_job() -> None:
    code = """
if os.fork() == 0:
    os.setsid()
    time.sleep(120)
    os._exit(0)
print('printed', flush=True)
os._exit(0)
"""
    done = subprocess.Popen([*RUN, "-np", "1", "--tag", *python(code)], stdout=subprocess.PIPE, text=True)
    assert done.wait(60) == 0
    os.set_blocking(done.stdout.fileno(), False)
    assert done.stdout.read() == "[0] printed\n"
