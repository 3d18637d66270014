"""What the ranks of a process group on several hosts take from torch's store, and their announcements of messages."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from speed import until

pytest.importorskip("torch")

from pycollective import Communicator, local_world
from pycollective.comm.bootstrap.nodes import Nodes
from pycollective.comm.group import Group
from pycollective.comm.hosts.connections import Listener
from pycollective.comm.hosts.network import Network
from pycollective.errors import BootstrapError
from pycollective.torch.distributed.bootstrap import across_hosts
from pycollective.torch.distributed.point_to_point.hosts_mailbox import HostsMailbox

TOKEN = bytes(16)
GROUP = Group(Nodes(1, (0, 1)), (0, 1), "process group 0")


class Store:
    """A store exchange in which another process answers for rank 0: with what it is given, or as rank 1."""

    def __init__(self, *answers: bytes | None) -> None:
        self.answers = iter(answers)

    def allgather(self, text: bytes, timeout: float | None = None, *, form: re.Pattern[bytes]) -> list[bytes]:
        assert form.fullmatch(text), text
        answer = next(self.answers)
        return [text if answer is None else answer, text]


def assert_refused(stated: str, *answers: bytes | None) -> None:
    """`answers`: whether rank 0 has a token, its token, the host's addresses, its own address."""
    with pytest.raises(BootstrapError, match=stated):
        across_hosts.connect(Store(*answers), GROUP, b"n" * 32, 5.0, lambda *_: None)  # type: ignore[arg-type]


HEX = b"ab" * 16


def test_a_rank_that_has_a_token_takes_none_from_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYCOLLECTIVE_TOKEN", TOKEN.hex())
    assert_refused("PYCOLLECTIVE_TOKEN is not set for rank 0", b"none", HEX)


def test_a_rank_in_mpi_takes_none_from_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(across_hosts, "launcher", lambda _: "mpi")
    assert_refused("not started in the same way", b"none", HEX)


def test_malformed_tokens_and_addresses_are_refused() -> None:
    assert_refused("does not hold the token", b"none", b"")
    for offered in (b"", b"00", b"ff" * 9):
        assert_refused("does not hold the addresses", b"none", HEX, offered)
    for address in (("localhost", 80), ("127.0.0.1", 0), ("127.0.0.1", 1 << 20), ("", 80)):
        packed = across_hosts.Endpoint("stranger", *address).pack().hex().encode()
        assert_refused("does not hold the address of rank 0", b"none", HEX, None, packed)


def mailbox(comm: Communicator) -> HostsMailbox:
    network = Network(Listener("127.0.0.1", TOKEN, "test"), 10.0)
    return HostsMailbox(comm.allgather_object, comm.rank, comm.size, network)


@pytest.fixture
def three() -> Iterator[list[HostsMailbox]]:
    made = local_world(3).run(mailbox)
    yield made
    for box in made:
        box.close()


def assert_next(box: HostsMailbox, source: int, expected: tuple[int, int]) -> None:
    until(lambda: box.next(source))
    assert box.next(source) == expected


def test_announcements_arrive_in_order_and_stay_until_they_are_taken(three: list[HostsMailbox]) -> None:
    sent = [(-(1 << 31), 0), (7, 1 << 40), ((1 << 31) - 1, 3)]
    for tag, nbytes in sent:
        assert three[2].room(0)
        three[2].announce(0, tag, nbytes)
    assert_next(three[0], 2, sent[0])
    assert three[0].next(1) is None
    for expected in sent:
        assert_next(three[0], 2, expected)
        three[0].take(2)
    assert three[0].next(2) is None


def test_a_full_connection_has_no_room_and_loses_nothing(three: list[HostsMailbox]) -> None:
    count = 0
    while three[0].room(1):
        three[0].announce(1, count % 1000, count)
        count += 1
    for i in range(count):
        assert_next(three[1], 0, (i % 1000, i))
        three[1].take(0)
    assert three[0].room(1)


def test_what_was_announced_survives_the_sender(three: list[HostsMailbox]) -> None:
    three[1].announce(0, 4, 5)
    three[0].announce(1, 6, 7)  # never read
    assert_next(three[1], 0, (6, 7))
    three[1].close()
    assert_next(three[0], 1, (4, 5))
    three[0].take(1)
    assert three[0].next(1) is None
    three[0].announce(1, 8, 9)  # to nobody
