"""Exchange of which gradients exist on which ranks in each step: one reduction with a byte for each parameter."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from pycollective.comm.bootstrap.rendezvous import name_ranks
from pycollective.comm.control import Codec
from pycollective.engine import Item
from pycollective.errors import MismatchError
from pycollective.hvd.basics import engine_of
from pycollective.hvd.process_sets import ProcessSet

NONE, DENSE, SPARSE, MISSING, STALE = 0, 1, 2, 4, 8
"""The kind of a parameter's gradient; bits, as ranks may differ. NONE: none is needed; MISSING: one was expected;
STALE: it has not been computed since the last update."""
_WORDS = {DENSE: "dense", SPARSE: "sparse", MISSING: "missing", STALE: "stale"}
_DIGEST = 8
Rows = dict[str, tuple[tuple[int, ...], str]]
"""Name of a parameter -> its shape and element type."""
_ROWS: Codec[Rows] = Codec(Rows)
_KINDS: Codec[list[int]] = Codec(list[int])


class GradientAgreement:
    """Which parameters have a gradient on any rank, and whether all ranks have the same parameters.

    Attributes:
        names: of the parameters, sorted: their order may differ between ranks.
    """

    def __init__(self, prefix: str, rows: Mapping[str, tuple[Sequence[int], str]], process_set: ProcessSet) -> None:
        """`prefix`: of the operation names."""
        self._prefix, self._process_set = prefix, process_set
        self.names = sorted(rows)
        self._rows: Rows = {name: (tuple(rows[name][0]), rows[name][1]) for name in self.names}
        digest = hashlib.sha256(repr(self._rows).encode()).digest()[:_DIGEST]
        # Bitwise or of the bytes and of their complements: they are complements only if all ranks have the same bytes.
        self._digest = digest + bytes(255 - byte for byte in digest)
        self._mine: list[int] = []

    def reach(self, kinds: Sequence[int], run: Callable[[Item], object] | None = None) -> list[int]:
        """Collective: the kinds of gradient that ranks have, for each of `names`, combined by bitwise or.

        Args:
            kinds: those of this rank's gradients.
            run: submits the operation behind it, and waits for it; None: nothing else is submitted with it.

        Raises:
            MismatchError: the ranks' parameters differ; on every rank, with the differences.
        """
        item = self.announcement(kinds)
        try:
            run(item) if run is not None else engine_of(self._process_set).run([item])
            found = self.combined(item)
        except MismatchError:  # the numbers of parameters differ
            found = None
        if found is None:
            raise self.parameters_differ()
        return found

    def announcement(self, kinds: Sequence[int]) -> Item:
        """The operation behind `reach`, for callers that do not wait."""
        self._mine = list(kinds)
        message = np.frombuffer(bytearray([*self._mine, *self._digest]), np.uint8)
        return Item("allreduce", f"{self._prefix}.present", message, message, "bor")

    def combined(self, item: Item) -> list[int] | None:
        """The result of `reach`, once the operation has completed; None: the ranks' parameters differ."""
        message = item.x.tobytes()
        kinds, digest, complement = message[: -2 * _DIGEST], message[-2 * _DIGEST : -_DIGEST], message[-_DIGEST:]
        if int.from_bytes(digest, "big") ^ int.from_bytes(complement, "big") != (1 << 8 * _DIGEST) - 1:
            return None
        return list(kinds)

    def kinds_differ(self, names: Sequence[str], advice: str) -> MismatchError:
        """Collective: the error for gradients whose kinds differ between ranks, for all ranks to raise.

        Args:
            names: of their parameters.
            advice: how to avoid it.
        """
        mine = dict(zip(self.names, self._mine, strict=True))
        encoded = _KINDS.encode([mine[name] for name in names])
        item = Item("call", f"{self._prefix}.kinds", run=lambda comm: comm.backend.exchange(encoded))
        (gathered,) = engine_of(self._process_set).run([item])
        ranks, by_rank = self._process_set.ranks or [], _KINDS.decode_all(gathered)

        def holders(number: int, kind: int) -> str:
            found = [rank for rank, kinds in zip(ranks, by_rank, strict=True) if kinds[number] == kind]
            return f"{_WORDS[kind]} on {name_ranks(found)}" if found else ""

        differ = [f"{name!r} is {', '.join(filter(None, (holders(i, kind) for kind in _WORDS)))}" for i, name in
                  enumerate(names)]  # fmt: skip
        return MismatchError(f"the gradient of {_first(differ)}: {advice}")

    def parameters_differ(self) -> MismatchError:
        """Collective: the error for different parameters, for all ranks to raise."""
        mine = _ROWS.encode(self._rows)
        item = Item("call", f"{self._prefix}.differ", run=lambda comm: comm.backend.exchange(mine))
        (gathered,) = engine_of(self._process_set).run([item])
        first, *others = _ROWS.decode_all(gathered)
        lines = [f"rank {rank} {_difference(rows, first)}" for rank, rows in enumerate(others, 1) if rows != first]
        return MismatchError(f"the ranks' parameters differ; against rank 0: {'; '.join(lines)}")


def _difference(rows: Rows, first: Rows) -> str:
    found = [f"has no {name!r}" for name in first if name not in rows]
    found += [f"has a {name!r} too" for name in rows if name not in first]
    found += [
        f"has {name!r} as {rows[name][1]} of shape {rows[name][0]}, not {first[name][1]} of shape {first[name][0]}"
        for name in rows
        if name in first and rows[name] != first[name]
    ]
    return _first(found)


def _first(found: list[str]) -> str:
    return ", ".join(found[:3]) + (f" and {len(found) - 3} more" if len(found) > 3 else "")
