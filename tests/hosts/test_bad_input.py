"""Networks, hosts and settings that do not fit: one sentence that names host, rank and what was tried, in bounded time.

Each case has hosts of its own; all run at the same time, since they mostly wait.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from speed import until

from hosts.forked import CLOCK_AHEAD, RENDEZVOUS_PORT, start_ranks
from hosts.simulated import Hosts
from pycollective.bench.namespaces import why_not

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())
CALL = "comm = pc.init(); result = comm.allreduce(np.arange(50_000.0) * (comm.rank + 1))[-1]"
SLACK = 40.0


@dataclass
class Case:
    """A job in which something is wrong.

    Attributes:
        layout: ranks on each host. lines: of all ranks.
        expected: by rank, what its report matches.
        seconds: within which every rank reports.
        env: variables of a rank. prepare: called before the start, and meanwhile after it, with the job's folder.
    """

    layout: tuple[int, ...]
    lines: str
    expected: dict[int, str]
    seconds: float = 8.0
    env: Callable[[int], dict[str, str]] = lambda rank: {}
    prepare: Callable[[Hosts], None] = lambda hosts: None
    meanwhile: Callable[[Hosts, Path], None] = lambda hosts, folder: None

    def run(self) -> dict[int, tuple[str, float]]:
        with tempfile.TemporaryDirectory() as name, Hosts(len(self.layout)) as hosts:
            folder = Path(name)
            self.prepare(hosts)
            start_ranks(
                hosts, self.layout, "hosts.reporting", [name, self.lines], folder / "log",
                lambda rank: {"PYCOLLECTIVE_INIT_TIMEOUT": "3", "PYCOLLECTIVE_TIMEOUT": "30", **self.env(rank)},
            )  # fmt: skip
            self.meanwhile(hosts, folder)
            reports = {rank: folder / str(rank) for rank in self.expected}
            with contextlib.suppress(AssertionError):
                until(lambda: all(report.exists() for report in reports.values()), SLACK)
            missing = json.dumps([f"no report; {(folder / 'log').read_text()}", SLACK])
            return {
                rank: tuple(json.loads(report.read_text() if report.exists() else missing))
                for rank, report in reports.items()
            }


def on(hosts: Hosts, host: str, words: str) -> None:
    """Run a command on a host."""
    subprocess.run(hosts.command(host, words.split()), check=True)


def only(rank: int, **variables: str) -> Callable[[int], dict[str, str]]:
    """Variables of one rank."""
    given = {f"PYCOLLECTIVE_{name}": text for name, text in variables.items()}
    return lambda each: given if each == rank else {}


def add_inner_network(hosts: Hosts) -> None:
    """An address of host1 only, as containers have."""
    on(hosts, "host1", "ip link add inner type veth peer name other")
    on(hosts, "host1", "ip addr add 192.168.9.2/24 dev inner")
    on(hosts, "host1", "ip link set inner up")


def stop_the_receiver(hosts: Hosts, folder: Path) -> None:
    until((folder / "pid").exists)
    hosts.stop("host1", int((folder / "pid").read_text()))


def cut_later(host: str) -> Callable[[Hosts, Path], None]:
    """Separate a host whose ranks have connected, before those of rank 2 start; they note this in the folder."""

    def cut(hosts: Hosts, folder: Path) -> None:
        until((folder / "starts").exists)
        hosts.cut(host)
        (folder / "cut").touch()

    return cut


LATE = f"""
import os, time
if os.environ["TEST_RANK"] == "2":
    time.sleep(0.5)  # meanwhile the others connect
    (folder / "starts").touch()
    while not (folder / "cut").exists(): time.sleep(0.01)
{CALL}
"""


def occupy(host: str, port: int) -> Callable[[Hosts], None]:
    """Another program listens there, and keeps connections open."""
    text = (
        f"import socket\nserver, kept = socket.create_server(('', {port})), []\nprint(flush=True)\n"
        f"while True:\n    kept.append(server.accept()[0])"
    )

    def prepare(hosts: Hosts) -> None:
        program = hosts.popen(host, [sys.executable, "-I", "-S", "-c", text], stdout=subprocess.PIPE)
        program.stdout.readline()
        program.stdout.close()

    return prepare


def changed(name: str, value: str) -> str:
    """Lines in which rank 1 has another version of something."""
    return f"""
import os, types
from pycollective.comm.hosts import team
if os.environ["RANK"] == "1":
    team.{name} = {value}
{CALL}
"""


NO_WAY = r"(no answer from there|no route to host|network is unreachable).*PYCOLLECTIVE_INTERFACE"
SETTINGS = {
    "SCRATCH": "1000000", "TILE": "5000", "STAGED_TILE": "7000", "HOSTS_TILE": "3000", "ISA": "1", "SPIN_US": "0",
}  # fmt: skip
RANK_0_IS_LATE = "comm = pc.init(); comm.barrier()\nif comm.rank == 0: import time; time.sleep(4)\n"
NOBODY_IS_HOST1 = "ip neigh replace 10.77.0.2 lladdr 02:00:00:00:00:99 dev eth0 nud permanent"
ONE = r". \(host host.\)"
RIGHT = dict.fromkeys(range(3), f"{49999 * 6.0}")

CASES = {
    "a host is cut off": Case((1, 1, 1), CALL, {
        0: r"BootstrapError: rank 2 of 3 has not arrived.*rank 0 listened at 10\.77\.0\.1:29000",
        1: "BootstrapError: rank 2 of 3 has not arrived",
        2: rf"BootstrapError: rank 2 on host host2 cannot reach rank 0 on host 10\.77\.0\.1 at \S+: {NO_WAY}",
    }, prepare=lambda hosts: hosts.cut("host2")),
    "two hosts reach only rank 0": Case((1, 1, 1), CALL, {
        # which of the two gives up first is not determined
        0: rf"BootstrapError: (rank 2 on host host2 cannot reach rank 1 on host host1 at \S+: {NO_WAY}"
        r"|rank 1 on host host1 was not reached at 10\.77\.0\.2:\d+ by rank 2 on host host2)",
        1: r"rank 1 on host host1 was not reached at 10\.77\.0\.2:\d+ by rank 2 on host host2",
        2: rf"rank 2 on host host2 cannot reach rank 1 on host host1 at 10\.77\.0\.2:\d+: {NO_WAY}",
    }, seconds=15, prepare=lambda hosts: on(hosts, "host2", NOBODY_IS_HOST1)),
    "an address behind a router": Case((1, 1, 1), CALL, {
        1: r"rank 1 on host host1 was not reached at 192\.168\.9\.2:\d+ by rank 2 on host host2",
        2: rf"rank 2 on host host2 cannot reach rank 1 on host host1 at 192\.168\.9\.2:\d+: {NO_WAY}",
    }, seconds=15, env=only(1, INTERFACE="192.168.9.2"), prepare=add_inner_network),
    "a host is cut off while ranks connect": Case((1, 1, 1), LATE, {
        0: r"rank 1 of 3 has not arrived.*rank 1 \(on host 10\.77\.0\.2\) is connected, but does not acknowledge",
        1: r"rank 0 of 3 has not arrived.*rank 1 on host host1 was connected with rank 0 .* at 10\.77\.0\.1:29000",
        2: r"rank 1 of 3 has not arrived.*rank 1 \(on host 10\.77\.0\.2\) is connected, but does not acknowledge",
    }, seconds=12, meanwhile=cut_later("host1")),
    "large packets are lost while ranks connect": Case((2, 2, 2), CALL, {
        0: r"ranks 2, 3 of 6 have not arrived.*rank 2 \(on host 10\.77\.0\.2\) is connected.*large packets.*MTU",
        2: r"rank 0 of 6 has not arrived.*rank 2 on host host1 was connected with rank 0 .* at 10\.77\.0\.1:29000",
        4: "ranks 2, 3 of 6 have not arrived.*MTU",
    }, seconds=12, prepare=lambda hosts: hosts.lose_large_packets("host1", 600)),
    "a process ends while ranks connect": Case(
        (1, 1, 1),
        f"""
import os
from pycollective.comm.hosts import team
if os.environ["RANK"] == "2": team.make_team = lambda *_: os._exit(9)
{CALL}
""",
        dict.fromkeys((0, 1), r"BootstrapError: rank 2 \(on host 10\.77\.0\.3\) left the rendezvous: its process"),
    ),
    "another program has rank 0's port": Case((1, 1), CALL, {
        0: r"BootstrapError: host host0 cannot listen at 10\.77\.0\.1:29000: Address already in use",
        1: r"rank 1 on host host1 cannot reach rank 0 on host 10\.77\.0\.1 at \S+:29000: what listens there "
        "accepts connections but does not answer",
    }, prepare=occupy("host0", RENDEZVOUS_PORT)),
    "another host timeout": Case(
        (1, 1), CALL, {0: r"rank 1 on host host1 has the PYCOLLECTIVE_HOST_TIMEOUT 0\.5, this rank on host host0 2"},
        env=only(1, HOST_TIMEOUT="0.5"),
    ),
    "another link": Case(
        (1, 1), CALL,
        dict.fromkeys((0, 1), "rank 1 on host host1 has PYCOLLECTIVE_LINK=ucx-shm, rank 0 on host host0 has"),
        env=only(1, LINK="ucx-shm"),
    ),
    "a setting that only one rank refuses": Case(
        (1, 1), CALL, {0: "BootstrapError: rank 1 on host host1: PYCOLLECTIVE_LINK='quic' is not one of auto, tcp"},
        env=only(1, LINK="quic"),
    ),
    "a name that does not resolve": Case(
        (1, 1), CALL, {1: "rank 1 cannot reach rank 0: the host name 'nowhere.invalid' does not resolve on host host1"},
        seconds=25, env=only(1, RENDEZVOUS="tcp://nowhere.invalid:29000/trial"),
    ),
    "another version": Case(
        (1, 1), changed("version", "lambda _: '0.0.1'"),
        {0: r"rank 1 on host host1 has the version of pycollective 0\.0\.1, this rank on host host0",
         1: "rank 0 on host host0 has the version of pycollective"},
    ),
    "another byte order": Case(
        (1, 1), changed("sys", "types.SimpleNamespace(byteorder='big')"),
        {0: "rank 1 on host host1 has the byte order big, this rank on host host0 little"},
    ),
    "other settings": Case((2, 1), CALL, RIGHT, env=only(2, **SETTINGS)),
    "another topology": Case(
        (2, 1), CALL, dict.fromkeys(range(3), "MismatchError.*topology=(ring|ordered).*topology=(ring|ordered)"),
        env=only(2, TOPOLOGY="ring"),
    ),
    "clocks apart": Case(
        (2, 1), f"import time; {CALL}; assert (comm.rank == 2) == (time.monotonic() > 1e6)", RIGHT,
        env=lambda rank: {CLOCK_AHEAD: "1000000"} if rank == 2 else {},
    ),
    "clocks apart, a rank is late": Case(
        (2, 1), RANK_0_IS_LATE + "comm.allreduce(np.ones(3), timeout=1)",
        {1: "TimeoutError.*rank 0", 2: "TimeoutError.*rank 0"},
        env=lambda rank: {CLOCK_AHEAD: "1000000"} if rank == 2 else {},
    ),
    "a rank is late for which one of another host waits": Case(
        (2, 1), RANK_0_IS_LATE + "comm.allreduce(np.ones(3), timeout=1 if comm.rank == 2 else 3)",
        {2: "TimeoutError.* no message within 1 s from rank 1; rank 1 waits for rank 0"},
    ),
    "large packets are lost": Case(
        (1, 1),
        "comm = pc.init(); x = np.ones(3); comm.allreduce(x)\n"
        "comm.broadcast(np.ones(1_000_000), root=0); comm.barrier()",
        dict.fromkeys((0, 1), rf"PeerLostError: large packets between rank {ONE} and rank {ONE} are lost.*MTU"),
        seconds=25, prepare=lambda hosts: hosts.lose_large_packets("host1", 1400),  # those of init() are smaller
    ),
    "the receiver of large messages is stopped": Case(
        (1, 2),
        "import os, time; comm = pc.init(); comm.barrier()\n"
        "if comm.rank == 1: (folder / 'new').write_text(str(os.getpid())); (folder / 'new').rename(folder / 'pid')\n"
        "if comm.rank == 1: time.sleep(60)\n"
        "time.sleep(0.3)\n"
        "sent = [comm.isend(np.ones(3_000_000), 1) for _ in range(3)]\n"
        "[each.wait() for each in sent]",
        {0: "TimeoutError.*rank 1", 2: "TimeoutError.*rank 1"},
        seconds=15, env=lambda rank: {"PYCOLLECTIVE_TIMEOUT": "3"}, meanwhile=stop_the_receiver,
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def reports() -> dict[str, dict[int, tuple[str, float]]]:
    with ThreadPoolExecutor(10) as pool:
        return dict(zip(CASES, pool.map(Case.run, CASES.values()), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_bad_input(reports: dict[str, Any], name: str) -> None:
    case = CASES[name]
    for rank, pattern in case.expected.items():
        text, seconds = reports[name][rank]
        assert re.search(pattern, text), (rank, text)
        assert text.count("\n") == 0, text
        assert seconds < case.seconds, (rank, seconds, text)
