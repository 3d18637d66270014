"""Which ranks share a host."""

from __future__ import annotations

import os

import pytest

from pycollective.comm.bootstrap.nodes import discover, node_key, place
from pycollective.comm.bootstrap.protocol import Alone


def test_nodes_of_two_hosts_interleaved_and_uneven() -> None:
    keys = [b"a", b"b", b"a", b"c", b"b", b"a"]
    seen = [place(keys, r) for r in range(6)]
    assert seen[0].of == (0, 1, 0, 2, 1, 0)
    assert [n.local_rank for n in seen] == [0, 0, 1, 0, 1, 2]
    assert [n.local_size for n in seen] == [3, 2, 3, 1, 2, 3]
    assert [n.cross_rank for n in seen] == [0, 1, 0, 2, 1, 0]
    assert [n.cross_size for n in seen] == [3, 3, 2, 3, 2, 1]
    assert seen[2].ranks() == (0, 2, 5)
    assert seen[2].ranks(1) == (1, 4)
    assert seen[0].count == 3


def test_node_key_distinguishes_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = node_key()
    assert mine == node_key()
    monkeypatch.setattr(os, "readlink", lambda path: "pid:[1]")
    assert node_key() != mine


def test_a_setting_divides_a_host(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = node_key()
    monkeypatch.setenv("PYCOLLECTIVE_HOST", "a")
    first = node_key()
    monkeypatch.setenv("PYCOLLECTIVE_HOST", "b")
    assert len({mine, first, node_key()}) == 3


def test_discover_uses_the_bootstrap() -> None:
    assert discover(Alone(), b"more") == (place([0], 0), b"more")
