"""Commits that outlive the job: a job that is started anew, on more ranks or fewer, goes on from the last one.

PYCOLLECTIVE_ELASTIC_FILE names the file. Rank 0 writes it at each commit and reads it before the first sync, so it has
to lie where rank 0 finds it again.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from pycollective.torch.functions import broadcast_object
from pycollective.torch.mpi_ops import rank, size

if TYPE_CHECKING:
    from pycollective.torch.elastic.state import State

VARIABLE = "PYCOLLECTIVE_ELASTIC_FILE"
_begun = False


def keep(state: State) -> None:
    """After a commit: leave it in the file, if there is to be one. A reader finds this commit or the one before."""
    content = state.kept()
    path = _path()
    if path is None or content is None or rank() != 0:
        return
    unfinished = path.with_name(f"{path.name}.new")
    torch.save({"ranks": size(), "state": content}, unfinished)
    os.replace(unfinished, path)


def resume(state: State) -> None:
    """Collective, before a sync: rank 0's state as the file has it, if there is one.

    Nothing once rank 0 has been through a sync: what is in the file then are this job's own commits.

    If another number of ranks has written it, all ranks call the reset callbacks, as after a loss.

    Raises:
        ValueError: the file does not fit the state. Otherwise what torch.load raises.
    """
    path = _path()
    ranks: int | None = None
    if rank() == 0 and not _begun and path is not None and path.exists():
        # The job's own file: values in it may be of any class.
        found: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=False)
        ranks = found["ranks"]
        state.take_kept(found["state"])
    ranks = broadcast_object(ranks)
    if ranks is not None and ranks != size():
        state.on_reset()


def begin() -> None:
    """After a sync: this rank has what there was in the file."""
    global _begun
    _begun = True


def _path() -> Path | None:
    name = os.environ.get(VARIABLE, "")
    return Path(name) if name else None
