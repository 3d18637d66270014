"""Elastic jobs: discovery scripts, hosts that are excluded, and where workers are placed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from processes import alive
from speed import until

from pycollective.elastic import DiscoveryError, Limits, ScriptDiscovery, discovery
from pycollective.elastic.host_list import HostList, by_rank, choose, place
from pycollective.elastic.workers import Worker

HANDLE: Any = None


def test_a_script_lists_hosts_in_order() -> None:
    found = ScriptDiscovery("echo b:2; echo; echo ' a '; echo 10.0.0.1:0", 3)()
    assert list(found.items()) == [("b", 2), ("a", 3), ("10.0.0.1", 0)]


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo no such thing >&2; exit 3", "failed with code 3: no such thing"),
        ("./missing", "failed with code 127"),
        ("echo a:b", "wrote 'a:b', which is not of the form host:slots"),
        ("echo '-oProxyCommand=x:1'", "which is not of the form host:slots"),
        ("echo 'a:1 b:1'", "which is not of the form host:slots"),
        ("echo a:99999", "which is not of the form host:slots"),
        ("echo a", "without a number of slots"),
        ("echo a:1; echo a:2", "lists the host a twice"),
        ("head -c 2000000 /dev/zero", "wrote 2000000 bytes, more than 1048576"),
        ("sleep 9", "has not ended within 0 s"),
    ],
)
def test_a_script_that_fails_is_named(script: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if "sleep" in script:
        monkeypatch.setattr(discovery, "_SCRIPT_SECONDS", 0.1)
    with pytest.raises(DiscoveryError, match="the discovery script") as error:
        ScriptDiscovery(script)()
    assert message in str(error.value)


def test_a_script_leaves_no_process(tmp_path: Path) -> None:
    ScriptDiscovery(f"sleep 60 >/dev/null 2>&1 & echo $! > {tmp_path}/pid; echo a:1", 1)()
    pid = int((tmp_path / "pid").read_text())
    until(lambda: not alive(pid), 5)


def test_known_hosts_keep_their_order() -> None:
    hosts = HostList()
    hosts.update({"b": 1, "a": 2})
    hosts.update({"c": 1, "a": 3, "b": 1})
    assert list(hosts.slots({}, 0.0).items()) == [("b", 1), ("a", 3), ("c", 1)]
    hosts.update({"c": 1, "b": 0})
    assert hosts.slots({}, 0.0) == {"c": 1}


def test_exclusions_last_longer_each_time() -> None:
    hosts = HostList((10.0, 35.0))
    hosts.update({"a": 2})
    now, seconds = 0.0, []
    for _ in range(4):
        assert hosts.failed("a", 0, True, now)
        assert hosts.slots({"a": 1}, now) == {"a": 1} and hosts.slots({}, now) == {}
        until = next(now + tenth / 10 for tenth in range(1000) if not hosts.is_excluded("a", now + tenth / 10))
        seconds.append(until - now)
        now = until
    assert 10 <= seconds[0] <= 20.1 and 20 <= seconds[1] <= 30.1 and seconds[2:] == pytest.approx([35, 35], abs=0.11)
    assert not hosts.is_hopeless()


def test_failures_in_one_generation_count_once() -> None:
    hosts = HostList()
    hosts.update({"a": 4, "b": 1})
    assert [hosts.failed("a", generation, False, 0.0) for generation in (1, 1, 1, 2, 2, 3)] == [False] * 5 + [True]
    assert not any(hosts.failed("b", number, False, 3601.0 * number) for number in range(9))  # too rarely
    assert hosts.is_excluded("a", 1e12) and not hosts.is_hopeless()
    hosts.update({"a": 4})
    assert hosts.is_hopeless()


counts = st.dictionaries(st.sampled_from("abcde"), st.integers(1, 6), max_size=5)


@given(counts, counts, st.none() | st.integers(1, 20))
def test_placement(slots: dict[str, int], running: dict[str, int], most: int | None) -> None:
    placed = place(slots, running, most)
    total = sum(slots.values())
    assert sum(placed.values()) == (total if most is None else min(total, most))
    assert all(0 < count <= slots[host] for host, count in placed.items())
    fitting = {host: min(count, slots.get(host, 0)) for host, count in running.items()}
    if most is None or sum(fitting.values()) <= most:  # nobody has to leave who has room
        assert all(placed.get(host, 0) >= count for host, count in fitting.items())


workers = st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.booleans()), min_size=1, max_size=9)


@given(workers)
def test_ranks(drawn: list[tuple[str, bool, bool]]) -> None:
    all_of_them, slots = [], dict.fromkeys("abc", 0)
    for number, (host, old, synced) in enumerate(drawn):
        rank = number if old else -1
        all_of_them.append(Worker(number, host, slots[host], HANDLE, rank=rank, synced=synced and old))
        slots[host] += 1
    ranks = by_rank(all_of_them)
    assert sorted(worker.number for worker in ranks) == list(range(len(drawn)))
    assert ranks[0].synced or not any(worker.synced for worker in ranks)
    hosts = [worker.host for worker in ranks]
    assert all(hosts.index(host) + hosts.count(host) == len(hosts) - hosts[::-1].index(host) for host in set(hosts))
    for host in set(hosts[hosts.count(hosts[0]) :]):
        assert [w.slot for w in ranks if w.host == host] == sorted(w.slot for w in ranks if w.host == host)


def test_workers_with_the_state_stay() -> None:
    new, old = Worker(7, "a", 0, HANDLE), Worker(1, "a", 1, HANDLE, rank=1, synced=True)
    assert choose([new, old], {"a": 1, "b": 2}) == [old]


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ((2, 3), "each must be at most the next"),
        ((2, 0), "at least 1"),
        ((4, 2, 3), "each must be at most the next"),
        ((1, None, None, -1), "reset limit of -1"),
        ((1, None, None, None, (5.0, 2.0)), "cool-down of 5 to 2 seconds"),
        ((1, None, None, None, (1.0, 9999.0)), "cool-down"),
        ((1, None, None, None, None, 0.0), "timeout of 0.0 seconds"),
    ],
)
def test_limits(limits: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Limits(*limits)
