"""The path of GPU arrays between the ranks of a host: determined once per communicator, by all ranks together.

A mapping that opens does not always work: with some chipsets and virtual machines, peer access is reported but delivers
wrong data. So every pair of ranks writes a pattern through the mapping and reads one back before anything else uses it.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from pycollective.comm.cuda.runtime import load
from pycollective.comm.cuda.windows import KINDS, DeviceWindow, give_up, share
from pycollective.comm.host.segments import Exchange, first_problem
from pycollective.errors import CommunicatorError

HOST = "host"
"""Device arrays are staged through host memory, and the CPU executes the calls."""

_WORDS = 64  # length of a pattern: each rank has a slot for every peer's


@dataclass(frozen=True)
class Path:
    """The path of a communicator's GPU arrays.

    Attributes:
        kind: "cuda-ipc", "cuda-vmm", "local" (ranks of one process) or "host".
        reason: why this one and not an earlier one of the list; a sentence.
    """

    kind: str
    reason: str


def agree(exchange: Exchange, rank: int, size: int, device: int) -> Path:
    """Collective: the first path that works between all pairs of ranks, the same on all of them.

    A path that one rank cannot use is rejected by all, with a RuntimeWarning on every rank that states why.
    """
    reasons: list[str] = []
    for kind in KINDS:
        try:
            window = share(exchange, rank, size, 8 * _WORDS * size, device, kind)
            try:
                _verify(exchange, rank, window)
            finally:
                give_up(exchange, rank, window)
        except CommunicatorError as error:
            reasons.append(f"{kind}: {error}")
            continue
        if not reasons:
            return Path(kind, "every pair of ranks has written and read through it")
        way = f"go through {kind}"
        break
    else:
        kind, way = HOST, "are staged through host memory, which is slow"
    found = Path(kind, "; ".join(reasons))
    warnings.warn(f"GPU arrays {way}, because {found.reason}", RuntimeWarning, stacklevel=2)
    return found


def _verify(exchange: Exchange, rank: int, window: DeviceWindow) -> None:
    """Collective: every rank writes into every part and reads what the others wrote.

    Raises:
        CommunicatorError: on every rank, if one read data other than written.
    """
    cuda, size, length = load(), len(window.bases), 8 * _WORDS

    def seed(writer: int, owner: int) -> int:
        return 1 + writer * size + owner

    def write_all() -> str:
        for owner, base in enumerate(window.bases):
            cuda.probe_write(window.device, base + rank * length, _WORDS, seed(rank, owner))
        return ""

    def read_all() -> str:
        for owner, base in enumerate(window.bases):
            for writer in range(size):
                wrong = cuda.probe_read(window.device, base + writer * length, _WORDS, seed(writer, owner))
                if wrong:
                    return f"rank {rank} read {wrong} of {_WORDS} words wrong that rank {writer} wrote to rank {owner}"
        return ""

    for action in (write_all, read_all):
        try:
            problem = action()
        except Exception as error:  # any error must be reported to the others
            problem = str(error) or type(error).__name__
        if problem := first_problem(exchange, problem):
            raise CommunicatorError(f"memory is mapped, but does not carry data: {problem}")
