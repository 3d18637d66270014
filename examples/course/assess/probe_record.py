"""What a rank of an assessment records: the gradients and broadcasts that the engine is given, and files."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Callable
from typing import Any

STEPS = 20
"""Number of steps whose gradients are compared."""


@dataclasses.dataclass
class Record:
    """What a rank has done.

    Attributes:
        size: number of ranks that hvd.init() has found; 0: it was not called.
        steps: number of steps whose gradients were reduced.
        gradients: digests of this rank's own gradients in the first steps, before they are reduced.
        broadcasts: number of arrays that were broadcast.
        parameters: digests of the parameters that the optimizers update, at the end of the script.
        images: number of training images that `load` has returned; 0: the script has other data.
        longest: most images in a pass of training.
        files: [path, "read" or "written"] of the regular files that it has opened under the working directory, and of
            those that torch, Keras or h5py read or write anywhere.
        error: of the script: the exception, with the line of the script; empty if there was none.
    """

    size: int = 0
    steps: int = 0
    gradients: list[str] = dataclasses.field(default_factory=list)
    broadcasts: int = 0
    parameters: list[str] = dataclasses.field(default_factory=list)
    images: int = 0
    longest: int = 0
    files: list[list[str]] = dataclasses.field(default_factory=list)
    error: str = ""


record = Record()
_step: dict[str, str] = {}
"""Name of a gradient -> its digest, in the current step."""
parameters: dict[int, Callable[[], str]] = {}
"""Functions that return the digest of an optimizer's parameters, by the optimizer's id."""


def digest(*arrays: Any) -> str:
    """Digest of the contents of arrays of any library."""
    import numpy as np

    content = hashlib.sha256()
    for array in arrays:
        plain = array.detach().cpu().numpy() if hasattr(array, "detach") else np.asarray(array)
        content.update(np.ascontiguousarray(plain).tobytes())
    return content.hexdigest()[:16]


def note_item(comm: Any, item: Any) -> None:
    """An operation as this rank gives it to the engine: a gradient before it is reduced, a broadcast, or another."""
    record.size = comm.size
    if item.collective == "broadcast":
        record.broadcasts += 1
    elif item.collective in ("allreduce", "adasum") and item.name.startswith("gradient."):
        if item.name in _step:  # the same gradient again: the next step has begun
            finish_step()
        if not item.name.endswith((".present", ".kinds")):
            _step[item.name] = digest(item.x) if record.steps < STEPS else ""


def finish_step() -> None:
    """All gradients of a step are known."""
    if _step and record.steps < STEPS:
        text = "".join(_step[name] for name in sorted(_step))
        record.gradients.append(hashlib.sha256(text.encode()).hexdigest()[:16])
    record.steps += bool(_step)
    _step.clear()


def note_file(path: Any, mode: str = "r") -> None:
    """A file that is opened; a buffer or a descriptor in place of a path is left out."""
    if isinstance(path, (str, bytes, os.PathLike)):
        how = "written" if set(mode) & set("wax+") else "read"
        entry = [os.path.realpath(os.fsdecode(path)), how]
        if entry not in record.files and not entry[0].startswith(("/dev/", "/proc/")):
            record.files.append(entry)
