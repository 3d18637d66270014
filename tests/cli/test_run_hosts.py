"""`pycollective run -H`: several hosts, all of them this machine, reached by a remote shell that is a script."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from processes import alive
from speed import until

from launch import CLI, run_command
from pycollective import BootstrapError
from pycollective.cli.launch import several_hosts
from pycollective.cli.launch.host_variables import refuse_differences
from pycollective.cli.launch.hosts import Host, parse_hosts, place_ranks, read_hostfile

from .ranks import pids, python

SHELL = """#!/bin/sh
# HOST COMMAND...: as ssh does, but on this machine, which counts as another host
echo "a word of welcome"
export PYCOLLECTIVE_HOST=$1
shift
exec sh -c "$*"
"""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rsh").write_text(SHELL)
    (tmp_path / "rsh").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def words(*words: str, hosts: str = "a:2,b:2") -> list[str]:
    return [*CLI, "run", "-H", hosts, "--rsh", "./rsh", *words]


def run(*given: str, hosts: str = "a:2,b:2", code: int = 0) -> subprocess.CompletedProcess[str]:
    return run_command(*words(*given, hosts=hosts), code=code, timeout=40)


def test_ranks_of_all_hosts_find_one_another() -> None:
    code = """
from pycollective.comm.bootstrap.detection import detect
from pycollective.comm.bootstrap.nodes import discover
found = detect(timeout=20)
nodes, _ = discover(found)
gathered = found.allgather(b"%d" % rank)
print(found.kind, found.size, nodes.of, nodes.local_rank, os.environ["LOCAL_RANK"], b"".join(gathered).decode())
"""
    done = run("--tag", *python(code), hosts="a:1,b:2,c")
    assert sorted(done.stdout.splitlines()) == [
        f"[{rank}] pycollective 4 (0, 1, 1, 2) {local} {local} 0123" for rank, local in enumerate((0, 0, 1, 0))
    ]
    assert "pycollective run: host b: ranks 1 to 2, address 127.0.0.1" in done.stderr


def test_variables_of_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYCOLLECTIVE_TIMEOUT", "77")
    monkeypatch.setenv("MINE", "a 'quoted' $word")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "5")
    names = ["PYCOLLECTIVE_SIZE", "PYCOLLECTIVE_LOCAL_SIZE", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR"]
    names += ["PYCOLLECTIVE_TIMEOUT", "MINE", "YOURS", "OMPI_COMM_WORLD_RANK"]
    code = f"import json\nprint(json.dumps([os.environ.get(name) for name in {names}]))"
    done = run("-np", "3", "-x", "MINE", "-x", "YOURS=b=c", "-x", "OTHERS", *python(code))
    values = sorted(json.loads(line) for line in done.stdout.splitlines())
    common = ["127.0.0.1", "77", "a 'quoted' $word", "b=c", None]
    assert values == [["3", "1", "3", "1", *common], ["3", "2", "3", "2", *common], ["3", "2", "3", "2", *common]]
    assert "warning: -x OTHERS: there is no such variable" in done.stderr


def test_the_token_is_on_no_command_line() -> None:
    code = """
token = os.environ["PYCOLLECTIVE_TOKEN"].encode()
assert len(token) == 32
lines = b""
for pid in filter(str.isdecimal, os.listdir("/proc")):
    try:
        lines += open(f"/proc/{pid}/cmdline", "rb").read()
    except OSError:
        pass
assert b"pycollective.cli.launch.agent" in lines
print(token in lines)
"""
    assert run(*python(code)).stdout == "False\n" * 4


def test_the_exit_code_is_of_the_first_rank_that_failed_and_the_others_are_stopped() -> None:
    code = """
write_pids(os.getpid())
while rank == 3 and not all(os.path.exists(f"pids{other}") for other in range(3)): pass
sys.exit(7) if rank == 3 else time.sleep(600)
"""
    done = run(*python(code), code=7)
    assert re.search(r"rank 3 \(pid \d+ of host b\) exited with code 7$", done.stderr)
    assert not any(map(alive, pids(3)))


@pytest.mark.parametrize("hosts", ["", "a:1,b:1", "a:1,b:2"])
@pytest.mark.parametrize("ended", [0, 1])
def test_ranks_are_told_of_one_that_ends_before_it_joins(hosts: str, ended: int) -> None:
    code = f"""
import pycollective as pc
if rank == {ended}: print(end='a word without a newline'); sys.exit()
try: pc.init()
except pc.BootstrapError as error: os.write(1, f'{{error}}\\n'.encode())
"""
    command = words(*python(code), hosts=hosts) if hosts else [*CLI, "run", "-np", "2", *python(code)]
    done = run_command(*command, timeout=90)  # less than PYCOLLECTIVE_INIT_TIMEOUT
    text = f"rank {ended} exited with code 0 without joining the other ranks"
    assert done.stdout.count(text) == (2 if hosts == "a:1,b:2" else 1), done.stdout
    assert "pycollective-agent" not in done.stdout


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_rank_outlives_the_launcher(number: int) -> None:
    command = words(*python("write_pids(os.getpid())\ntime.sleep(60)"))
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as launcher:
        found = pids(4)
        launcher.send_signal(number)
        launcher.wait(20)
        until(lambda: not any(map(alive, found)), 10)


def test_ranks_that_ignore_signals_are_killed() -> None:
    code = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nwrite_pids(os.getpid())\ntime.sleep(60)"
    with subprocess.Popen(words(*python(code), hosts="a:1,b:1"), stderr=subprocess.DEVNULL) as launcher:
        found = pids(2)
        launcher.terminate()
        launcher.terminate()
        time.sleep(0.2)
        launcher.terminate()
        assert launcher.wait(20) != 0
        assert not any(map(alive, found))


def test_a_host_that_cannot_be_reached_is_named() -> None:
    for shell, code in (("false", 1), ("sh -c 'exit 255'", 255)):
        errors = run_command(*CLI, "run", "-H", "a:1,b:1", "--rsh", shell, "true", code=2, timeout=20).stderr
        assert any(  # both hosts fail at the same time
            f"host {host}: the agent ended with code {code} before it reported" in errors
            and f"(tried: {shell} {host} " in errors
            for host in "ab"
        ), errors


def test_an_interface_that_a_host_lacks() -> None:
    errors = run("--interface", "eth77", "true", code=2).stderr
    assert "host a has no interface, address or network 'eth77'" in errors


def test_a_host_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(several_hosts, "START_SECONDS", 0.3)
    silent = ["sh", "-c", "exec sleep 60"]
    with pytest.raises(BootstrapError, match=r"no answer from a, b within 0 s \(tried: sh -c 'exec sleep 60' a "):
        several_hosts.run(place_ranks(parse_hosts("a:1,b:1"), 2), ["true"], shell=silent)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_before_the_hosts_answer_ends_the_launcher(number: int) -> None:
    shell = "sh -c 'echo $$ >new$0; mv new$0 pids$0; exec sleep 60'"
    command = [*CLI, "run", "-H", "0:1,1:1", "--rsh", shell, "true"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as launcher:
        found = pids(2)
        launcher.send_signal(number)
        _, stderr = launcher.communicate(timeout=20)
        assert launcher.returncode != 0
        assert "interrupted before the ranks were started" in stderr
        until(lambda: not any(map(alive, found)))


def test_unknown_settings_are_reported_once_for_all_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYCOLLECTIVE_TIMOUT", "3")
    done = run(*python("import pycollective\npycollective.init().barrier()"))
    lines = [line for line in done.stderr.splitlines() if "PYCOLLECTIVE_TIMOUT" in line]
    assert len(lines) == 1 and lines[0].endswith("did you mean PYCOLLECTIVE_TIMEOUT?"), done.stderr


@pytest.mark.parametrize("options", [(), ("-H", "a:1,b:1"), ("--host-discovery-script", "./rsh", "--min-np", "1")])
def test_the_launcher_refuses_a_setting(options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYCOLLECTIVE_TIMEOUT", "abc")
    done = run_command(*CLI, "run", *options, "true", code=2, timeout=40)
    assert done.stderr.endswith("PYCOLLECTIVE_TIMEOUT='abc' is not a number of seconds, at least 0\n"), done.stderr


@pytest.mark.parametrize(("what", "theirs"), [("version", "0.0.1"), ("byteorder", "big")])
def test_hosts_that_differ_are_refused(what: str, theirs: str) -> None:
    mine = {"host": "a", "version": "1.2.3", "byteorder": "little"}
    refuse_differences([mine, mine | {"host": "b"}])
    expected = f"host c has pycollective's {what} {theirs}, host a {mine[what]}"
    with pytest.raises(BootstrapError, match=re.escape(expected)):
        refuse_differences([mine, mine | {"host": "b"}, mine | {"host": "c", what: theirs}])


def test_a_command_that_cannot_be_started() -> None:
    assert "cannot start './missing'" in run("./missing", code=127).stderr


WRONG = {  # options, and what is reported
    "-H a:0": "'a:0' is not of the form HOST:SLOTS",
    "-H -oProxyCommand=x:1": "is not of the form HOST:SLOTS",
    "-H a:1,a:2": "the host a is listed twice",
    "-H a:1 -np 2": "-np 2 is more than the 1 slots",
    "-H a:1 --hostfile x": "exclude each other",
    "-H a:1 --bind": "--bind applies to one host",
    "-H a:1,b:1 --rsh no-such-shell": "cannot start 'no-such-shell'",
    "--rsh x": "need -H or --hostfile",
    "--hostfile missing": "missing: No such file",
}


@pytest.mark.parametrize("options", WRONG)
def test_bad_options(options: str) -> None:
    (line,) = run_command(*CLI, "run", *options.split(), "true", code=2, timeout=20).stderr.splitlines()
    assert WRONG[options] in line


def test_hosts_and_slots(tmp_path: Path) -> None:
    assert parse_hosts("a:4,user@b,c:2") == [("a", 4), ("user@b", 1), ("c", 2)]
    assert parse_hosts("[fd00::1]:4,[::1],[fe80::2%eth0]:08") == [("fd00::1", 4), ("::1", 1), ("fe80::2%eth0", 8)]
    for wrong in ("fd00::1", "fd00::1:4", "[fd00::1", "[a]:4x", "a:", ":4", "a,,b", "[]:1"):
        with pytest.raises(ValueError, match="is not of the form HOST:SLOTS"):
            parse_hosts(wrong)
    file = tmp_path / "hosts"
    file.write_text("# ours\na slots=4\n\nb:2  # the slow one\nc\n")
    assert read_hostfile(file) == [("a", 4), ("b", 2), ("c", 1)]
    file.write_text("a slots=4\nb cores=2\n")
    with pytest.raises(ValueError, match="line 2: 'b cores=2' is not"):
        read_hostfile(file)
    assert place_ranks([("a", 4), ("b", 2), ("c", 1)], 5) == [Host("a", 0, 4), Host("b", 4, 1)]
    assert place_ranks([("a", 1), ("b", 2)], None) == [Host("a", 0, 1), Host("b", 1, 2)]
