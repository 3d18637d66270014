"""Measured choices for calls that name no topology, instead of the planner's rules: the file of PYCOLLECTIVE_TUNING.

Rank 0 reads it (tuning_file.py) and sends it to all ranks when they connect, which then make the same choices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pycollective import settings

if TYPE_CHECKING:  # without the setting its format is not loaded
    from pycollective.comm.tuning_file import TuningFile


class Choice(NamedTuple):
    """How a call is run. It can stand for the topology of a call, as it does while `pycollective tune` measures."""

    topology: str
    """Its label; empty: the planner's rules decide, whatever was measured."""
    small: bool = False
    """Whether the variant for small messages is used, if there is one."""
    tile: int = 0
    """Bytes of a tile; 0: as the settings state."""

    @property
    def digest(self) -> int:
        """A number that differs between choices of the same topology, for the call's fingerprint."""
        return (self.tile << 2 | self.small << 1 | 1) if self.topology else 0


RULES = Choice("")


def offered() -> bytes:
    """The file of PYCOLLECTIVE_TUNING, to be sent by rank 0; empty if there is none that applies, with a warning."""
    path = settings.read("PYCOLLECTIVE_TUNING")
    if not path:
        return b""
    from pycollective.comm import tuning_file

    return tuning_file.read_for_job(path)


def accepted(sent: bytes) -> TuningFile | None:
    """What rank 0 has offered."""
    if not sent:
        return None
    from pycollective.comm.tuning_file import TuningFile

    return TuningFile.decode(sent)
