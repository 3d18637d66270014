"""Stores of other launchers and of torch."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from pycollective.comm.bootstrap.stores import TorchStore

distributed: Any = pytest.importorskip("torch.distributed")

pytestmark = pytest.mark.torch


def test_a_rank_that_waits_for_a_key_does_not_hold_the_store() -> None:
    """Groups are made by several threads of a rank, over one connection to the store."""
    server = distributed.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    store = TorchStore(server)
    found: list[bytes | None] = []
    begins = threading.Event()

    def wait() -> None:
        begins.set()
        found.append(store.get("late", time.monotonic() + 10))

    waiting = threading.Thread(target=wait)
    waiting.start()
    begins.wait()
    time.sleep(0.05)  # or the test might pass without having tested anything
    store.set("other", b"1")
    assert store.get("other", time.monotonic() + 5) == b"1" and not found
    store.set("late", b"2")
    waiting.join(20)
    assert found == [b"2"]
    assert store.get("never", time.monotonic() + 0.05) is None
