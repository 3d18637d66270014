"""`pycollective run` through a real ssh: Debian's sshd on a port of the loopback, with keys made for the test."""

from __future__ import annotations

import getpass
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import alive
from speed import until

from launch import CLI, run_command

SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
pytestmark = pytest.mark.skipif(SSHD is None, reason="needs sshd (Debian's openssh-server)")
SERVER = """
ListenAddress 127.0.0.1:{port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/key.pub
PidFile {folder}/sshd.pid
AcceptEnv PYCOLLECTIVE_HOST
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin yes
"""
CLIENT = """
Host a b c
  HostName 127.0.0.1
  Port {port}
  IdentityFile {folder}/key
  UserKnownHostsFile {folder}/known
  SetEnv PYCOLLECTIVE_HOST=%n
"""


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The words of a remote shell that reaches the hosts a, b and c, all of them this machine."""
    folder = tmp_path_factory.mktemp("ssh")
    for name in ("key", "host_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (folder / "server").write_text(SERVER.format(port=port, folder=folder))
    hosts = [CLIENT.replace("a b c", name).replace("%n", name).format(port=port, folder=folder) for name in "abc"]
    (folder / "client").write_text("".join(hosts))
    (folder / "known").write_text(f"[127.0.0.1]:{port} {(folder / 'host_key.pub').read_text()}")
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    words = [str(SSHD), "-D", "-e", "-f", str(folder / "server")]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=log)
    rsh = f"ssh -F {folder}/client -o BatchMode=yes -l {getpass.getuser()}"
    try:
        reached = [*rsh.split(), "a", "true"]
        until(lambda: server.poll() is not None or not subprocess.run(reached, capture_output=True).returncode)
        assert server.poll() is None, (folder / "log").read_text()
        yield rsh
    finally:
        server.terminate()
        server.wait(10)


def words(shell: str, *options: str) -> list[str]:
    return [*CLI, "run", "-H", "a:2,b:2", "--rsh", shell, *options]


def pids(launcher: subprocess.Popen[str], count: int) -> list[int]:
    """Those that as many ranks print."""
    return [int(launcher.stdout.readline()) for _ in range(count)]


REPORT = """
import json, os, sys
import numpy as np
import pycollective as pc
comm = pc.init()
here = [os.environ["PYCOLLECTIVE_HOST"], int(comm.allreduce(np.array([comm.rank]))[0]), os.getcwd(), sys.argv[1:]]
sys.stdout.write(json.dumps([comm.rank, *here, os.environ["MINE"], sys.stdin.read()]) + "\\n")
sys.stdout.flush()
os.write(2, b"error of %d\\n" % comm.rank)
if comm.rank == 0:
    os.write(1, (b"x" * 99_999 + b"\\n") * 10 + b"the end")
sys.exit(int(sys.argv[1]))
"""
NASTY = "a 'quoted' \"word\" $HOME `id` $(id) \\\\ * ; & | < \n second line \u20ac"


@pytest.mark.parametrize("code", [0, 7])
def test_output_environment_words_and_exit_code(
    shell: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "a folder with 'quotes'"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("MINE", NASTY)
    (folder / "my script.py").write_text(REPORT)
    command = words(shell, "--tag", "-x", "MINE", "my script.py", str(code), NASTY)
    done = run_command(*command, code=code, timeout=60, input="not for the ranks")
    lines = done.stdout.splitlines()
    assert lines.count(f"[0] {'x' * 99_999}") == 10 and "[0] the end" in lines
    about = sorted(line[4:] for line in lines if line[4] == "[")
    assert [json.loads(line) for line in about] == [
        [rank, "ab"[rank // 2], 6, str(folder), [str(code), NASTY], NASTY, ""] for rank in range(4)
    ]
    assert all(f"[{rank}] error of {rank}\n" in done.stderr for rank in range(4))


ENDLESS = """
import os, subprocess, sys, time
child = subprocess.Popen(["sleep", "60"])
os.write(1, b"%d\\n%d\\n" % (os.getpid(), child.pid))
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("number", "elastic"),
    [(signal.SIGKILL, False), (signal.SIGTERM, False), (signal.SIGINT, False), (signal.SIGKILL, True)],
)
def test_no_process_outlives_the_launcher(shell: str, number: int, elastic: bool) -> None:
    options = ["--min-np", "2"] if elastic else []
    command = words(shell, *options, sys.executable, "-c", ENDLESS)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as launcher:
        found = pids(launcher, 8)
        launcher.send_signal(number)
        assert launcher.wait(20) in (-number, 128 + number)
        until(lambda: not any(map(alive, found)))


def test_an_ssh_that_is_killed(shell: str) -> None:
    """As if the connection to a host were lost: its ranks end, and the job with them."""
    command = words(shell, sys.executable, "-c", ENDLESS)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as launcher:
        found = pids(launcher, 8)
        children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
        [ssh] = [pid for pid in children if b"\0b\0" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        os.kill(int(ssh), signal.SIGKILL)
        assert launcher.wait(20) == 137
        until(lambda: not any(map(alive, found)))
        assert "the ranks of host b ended with code 137" in launcher.stderr.read()


def test_a_host_that_refuses(shell: str) -> None:
    errors = run_command(*words(f"{shell} -o PubkeyAuthentication=no", "true"), code=2, timeout=30).stderr
    assert "Permission denied" in errors and "the agent ended with code 255 before it reported" in errors
