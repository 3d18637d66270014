"""What the ranks of a process group on several hosts take from torch's store, and their announcements of messages."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("torch")

from pycollective.comm.bootstrap.nodes import Nodes
from pycollective.comm.group import Group
from pycollective.comm.hosts.connections import Listener
from pycollective.comm.hosts.network import Network
from pycollective.errors import BootstrapError
from pycollective.torch.distributed.bootstrap import across_hosts
from pycollective.torch.distributed.point_to_point.hosts_mailbox import HostsMailbox

pytestmark = pytest.mark.torch
TOKEN = bytes(16)
GROUP = Group(Nodes(1, (0, 1)), (0, 1), "process group 0")


class Store:
    """A store exchange in which another process answers for rank 0."""

    def __init__(self, *answers: Callable[[bytes], bytes]) -> None:
        self.answers = iter(answers)

    def allgather(self, text: bytes, timeout: float | None = None, *, form: re.Pattern[bytes]) -> list[bytes]:
        assert form.fullmatch(text), text
        return [next(self.answers)(text), text]


def join(store: Store) -> None:
    across_hosts.connect(store, GROUP, b"n" * 32, 5.0, lambda *_: None)  # type: ignore[arg-type]


def test_a_rank_that_has_a_token_takes_none_from_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYCOLLECTIVE_TOKEN", TOKEN.hex())
    with pytest.raises(BootstrapError, match="PYCOLLECTIVE_TOKEN is not set for rank 0"):
        join(Store(lambda _: b"none", lambda _: b"ab" * 16))


def test_a_rank_in_mpi_takes_none_from_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(across_hosts, "launcher", lambda _: "mpi")
    with pytest.raises(BootstrapError, match="not started in the same way"):
        join(Store(lambda _: b"none", lambda _: b"ab" * 16))


@pytest.mark.parametrize("address", [("localhost", 80), ("127.0.0.1", 0), ("127.0.0.1", 1 << 20), ("", 80)])
def test_only_numeric_addresses_are_taken_from_the_store(address: tuple[str, int]) -> None:
    packed = across_hosts.Endpoint("stranger", *address).pack().hex().encode()
    with pytest.raises(BootstrapError, match="does not hold the address of rank 0"):
        join(Store(lambda _: b"none", lambda _: b"ab" * 16, lambda text: text, lambda _: packed))


@pytest.mark.parametrize("offered", [b"", b"00", b"ff" * 9])
def test_malformed_offers_of_addresses_are_refused(offered: bytes) -> None:
    with pytest.raises(BootstrapError, match="does not hold the addresses"):
        join(Store(lambda _: b"none", lambda _: b"ab" * 16, lambda _: offered))


def test_a_missing_token_is_refused() -> None:
    with pytest.raises(BootstrapError, match="does not hold the token"):
        join(Store(lambda _: b"none", lambda _: b""))


def mailboxes(size: int) -> list[HostsMailbox]:
    barrier, texts = threading.Barrier(size), [b""] * size
    networks = [Network(Listener("127.0.0.1", TOKEN, "test"), 10.0) for _ in range(size)]

    def build(rank: int) -> HostsMailbox:
        def exchange(data: bytes) -> list[bytes]:
            texts[rank] = data
            barrier.wait()
            found = [*texts]
            barrier.wait()
            return found

        return HostsMailbox(exchange, rank, size, networks[rank])

    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(build, range(size)))


@pytest.fixture
def three() -> Iterator[list[HostsMailbox]]:
    made = mailboxes(3)
    yield made
    for box in made:
        box.close()


def until(look: Callable[[], Any]) -> Any:
    """What `look` returns, once it is something."""
    found, end = look(), threading.Event()
    for _ in range(5000):
        if found is not None:
            break
        end.wait(1e-3)
        found = look()
    return found


def test_announcements_arrive_in_order_and_stay_until_they_are_taken(three: list[HostsMailbox]) -> None:
    sent = [(-(1 << 31), 0), (7, 1 << 40), ((1 << 31) - 1, 3)]
    for tag, nbytes in sent:
        assert three[2].room(0)
        three[2].announce(0, tag, nbytes)
    assert until(lambda: three[0].next(2)) == three[0].next(2) == sent[0]
    assert three[0].next(1) is None
    for expected in sent:
        assert until(lambda: three[0].next(2)) == expected
        three[0].take(2)
    assert three[0].next(2) is None


def test_a_full_connection_has_no_room_and_loses_nothing(three: list[HostsMailbox]) -> None:
    count = 0
    while three[0].room(1):
        three[0].announce(1, count % 1000, count)
        count += 1
    for i in range(count):
        assert until(lambda: three[1].next(0)) == (i % 1000, i)
        three[1].take(0)
    assert three[0].room(1)


def test_what_was_announced_survives_the_sender(three: list[HostsMailbox]) -> None:
    three[1].announce(0, 4, 5)
    three[0].announce(1, 6, 7)  # never read
    assert until(lambda: three[1].next(0)) == (6, 7)
    three[1].close()
    assert until(lambda: three[0].next(1)) == (4, 5)
    three[0].take(1)
    assert three[0].next(1) is None
    three[0].announce(1, 8, 9)  # to nobody
