"""Which ranks of silent hosts are lost, and how they are reported: a rank against sockets that a test plays with."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from launch import run_command

# Rank 0 is alone on its host, ranks 1 and 2 are on another one.  A message begins with: value (of an abort the
# fault), call, sequence, step (of an abort the culprit), bytes that follow, kind.
PEERS = """
import socket, struct, threading, time
import numpy as np
import pycollective as pc
from pycollective import _core
from pycollective.comm.bootstrap.nodes import Nodes
from pycollective.comm.communicator import Communicator
from pycollective.comm.group import Group
from pycollective.comm.host.core_team import CONTROL_LANE, LANES, make_team, segment_bytes
from pycollective.comm.host.team import HostTeam

HEADER, ABORT, HEARTBEAT, LOST = struct.Struct("=QQQqQII"), 2, 4, 3

def beat(rank):
    control[rank].sendall(HEADER.pack(0, 0, 0, 0, 0, HEARTBEAT, 0))

def report(rank, culprit, text):
    control[rank].sendall(HEADER.pack(LOST, 0, 0, culprit, len(text), ABORT, 0) + text)

def beat_for(rank, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        beat(rank)
        time.sleep(0.02)

def first_of(world_ranks):  # rank 0 of a communicator, and the far ends of its connections
    hosts = (0,) + (1,) * (len(world_ranks) - 1)
    group = Group(Nodes(0, hosts), world_ranks, "played")
    pairs = {rank: [socket.socketpair() for _ in range(LANES)] for rank in range(1, len(hosts))}
    segment = _core.Segment.create("local", segment_bytes(1, 1 << 20, True))
    others = {rank: [pair[0] for pair in pairs[rank]] for rank in pairs}
    team = make_team(segment, group, 1 << 20, others, [("1", "near") if host == 0 else ("2", "far") for host in hosts])
    return Communicator(HostTeam(team, group, True)), {rank: [pair[1] for pair in pairs[rank]] for rank in pairs}

comm, far = first_of((0, 1, 2))
control = {rank: far[rank][CONTROL_LANE] for rank in far}
started = time.monotonic()

def raised(comm=comm):
    try:
        comm.allreduce(np.ones(3), timeout=1.5)
    except pc.Error as error:
        print(type(error).__name__, getattr(error, "rank", ""), error, flush=True)
"""


def _play(tmp_path: Path, text: str) -> str:
    script = tmp_path / "peers.py"
    script.write_text(PEERS + text)
    env = {"PYCOLLECTIVE_HOST_TIMEOUT": "0.4", "OMP_NUM_THREADS": "1"}
    return run_command(sys.executable, "-I", script, env=env).stdout


def test_a_silent_host_is_lost(tmp_path: Path) -> None:
    text = _play(tmp_path, "beat(1); beat(2); beat_for(1, 0.6); raised(); assert time.monotonic() - started < 1.5")
    assert text.startswith("PeerLostError 1 rank 1 (host far) is gone (its host has not answered for 0.4 s) during all")


@pytest.mark.parametrize("answered", [True, False])
def test_only_a_host_that_never_answered_gets_time_for_a_new_communicator(tmp_path: Path, answered: bool) -> None:
    """It may be stopped while the communicator is made."""
    text = _play(tmp_path, f"{'beat(1); ' if answered else ''}time.sleep(0.1); other = first_of((0, 1)); raised()")
    assert text.startswith("PeerLostError 1" if answered else "TimeoutError")


def test_a_rank_that_is_silent_alone_is_only_late(tmp_path: Path) -> None:
    text = _play(tmp_path, "beat(1); threading.Thread(target=beat_for, args=(2, 2.0)).start(); raised()")
    assert text.startswith("TimeoutError") and "rank 1" in text


def test_ranks_of_a_host_that_are_in_another_communicator_count(tmp_path: Path) -> None:
    script = """
other, far_of_other = first_of((0, 1))
beat(1)
far_of_other[1][CONTROL_LANE].sendall(HEADER.pack(0, 0, 0, 0, 0, HEARTBEAT, 0))
threading.Thread(target=beat_for, args=(2, 2.0)).start()
raised(other)
"""
    text = _play(tmp_path, script)
    assert text.startswith("TimeoutError") and "rank 1" in text


def test_heartbeats_are_sent_while_no_call_runs(tmp_path: Path) -> None:
    script = """
for flags in (socket.MSG_DONTWAIT, 0, 0, 0):  # the first is sent at once
    print(HEADER.unpack(control[2].recv(HEADER.size, flags))[5] == HEARTBEAT)
"""
    assert _play(tmp_path, script).split() == ["True"] * 4


@pytest.mark.parametrize("pause", [0.0, 0.3])
def test_a_report_counts_more_than_the_end_of_who_reported(tmp_path: Path, pause: float) -> None:
    text = _play(tmp_path, f"report(2, 1, b'rank 1 is gone'); control[2].close(); time.sleep({pause}); raised()")
    assert text.startswith("PeerLostError 1 rank 1 is gone")


def test_an_ended_process_is_named_with_its_host(tmp_path: Path) -> None:
    text = _play(tmp_path, "control[2].close(); raised()")
    assert text.startswith("PeerLostError 2 rank 2 (host far) is gone (its process has ended) during allreduce")


def test_of_two_lost_ranks_the_first_is_named(tmp_path: Path) -> None:
    """Launchers end the others because of it; this rank waits for one of these."""
    script = """
def end():
    while HEADER.unpack(control[1].recv(HEADER.size, socket.MSG_WAITALL))[3] != 1:  # for which rank it waits
        pass
    for connection in far[1]:
        connection.close()
control[2].close()
threading.Thread(target=end).start()
raised()
"""
    assert _play(tmp_path, script).startswith("PeerLostError 2 rank 2 (host far) is gone (its process has ended)")


def test_a_rank_reported_as_lost_is_gone_while_its_connection_is_open(tmp_path: Path) -> None:
    gone = "print(comm.backend.team.gone(1))"
    lines = _play(tmp_path, f"{gone}; report(2, 1, b'rank 1 is gone'); raised(); {gone}").splitlines()
    assert [lines[0], lines[2]] == ["False", "True"]


def test_who_leaves_because_of_a_silent_host_reports_that_first(tmp_path: Path) -> None:
    """Ranks that wait for it would name it instead of the host."""
    script = """
beat(1); beat(2); time.sleep(0.9)
comm.free()
data = control[2].recv(1 << 16)
while data:
    header, data = HEADER.unpack(data[: HEADER.size]), data[HEADER.size :]
    if header[5] != HEARTBEAT:
        print(header[5] == ABORT, header[3], data[: header[4]].decode())
    data = data[header[4] :]
"""
    first, second = _play(tmp_path, script).splitlines()
    assert first == "True 1 rank 1 (host far) is gone (its host has not answered for 0.4 s)"
    assert second.startswith("False 0")
