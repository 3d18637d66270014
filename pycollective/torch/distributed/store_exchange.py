"""An exchange through torch's store, to which any process that can reach it can write: only for harmless values."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from pycollective.comm.bootstrap.rendezvous import name_ranks
from pycollective.errors import BootstrapError


class StoreExchange:
    """A collective allgather of short texts over a store; each `part` of a group has its own keys.

    Args:
        store: of this process group only (a PrefixStore).
        rank, size: in the process group.
        part: what the exchange is for.
        name: of the group, for messages.
        timeout: seconds to wait for the others in each call.

    Attributes:
        turn: how often this rank has created such an exchange; the same on all ranks.

    Raises (the call):
        BootstrapError: ranks have not joined in time, names them; the store cannot be reached, or its values are not
            those that the ranks stored.
    """

    def __init__(self, store: Any, rank: int, size: int, part: str, name: str, timeout: float) -> None:
        self._store, self._rank, self._size, self._name, self._timeout = store, rank, size, name, timeout
        # A store may outlive a group, and be used by a later group of the same name: torchrun's agent keeps one for the
        # whole job. Every rank counts its exchanges, and all counts are equal.
        self.turn = int(store.add(f"pycollective/{part}/{rank}", 1))
        self._prefix = f"pycollective/{part}/{self.turn}"
        self._calls = 0

    def __call__(self, text: bytes, form: re.Pattern[bytes]) -> list[bytes]:
        """Every rank's `text`, each checked against the pattern `form`."""
        prefix = f"{self._prefix}/{self._calls}"
        self._calls += 1
        self._store.set(f"{prefix}/{self._rank}", text)
        keys = [f"{prefix}/{rank}" for rank in range(self._size)]
        try:
            self._store.wait(keys, timedelta(seconds=self._timeout))
        except RuntimeError as error:
            raise BootstrapError(self._missing(keys, error)) from None
        texts = [bytes(self._store.get(key)) for key in keys]
        wrong = [rank for rank, one in enumerate(texts) if not form.fullmatch(one)]
        if wrong or texts[self._rank] != text:
            ranks = name_ranks(wrong or [self._rank])
            raise BootstrapError(f"torch's store does not hold the values that {ranks} of {self._name} stored")
        return texts

    def _missing(self, keys: Sequence[str], error: Exception) -> str:
        try:
            late = [rank for rank, key in enumerate(keys) if not self._store.check([key])]
        except RuntimeError:
            late = []
        if not late:
            return f"the process group's store cannot be reached: {error}"
        have = "has" if len(late) == 1 else "have"
        return f"{name_ranks(late)} of {self._size} {have} not joined the process group within {self._timeout:g} s"
