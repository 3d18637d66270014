"""Checkpoints: rank 0 reads and writes the file, the others hear from rank 0."""

from __future__ import annotations

import json
import os
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pycollective.comm import arrays
from pycollective.optim.fusion import copy_into, namespace
from pycollective.optim.objects import on_rank_0
from pycollective.optim.sgd import DistributedSGD

FORMAT = 1


def save_checkpoint(path: str | os.PathLike[str], sgd: DistributedSGD, **extra: Any) -> None:
    """Collective: rank 0 writes parameters and optimizer state to a .npz file, at once or not at all.

    The file appears under its name only when it is complete, by renaming; the call returns on every rank when it is
    there. It holds arrays and JSON, no pickles: parameter k as "parameters/k", its velocity as "velocity/k".

    Args:
        path: the file, taken literally (no .npz is added); its folder must exist.
        extra: what else to remember, anything that JSON can say: epoch=3.

    Raises:
        OSError: the file cannot be written. TypeError: `extra` is not JSON, or a dtype that .npz cannot hold.
        Raised on every rank.
    """
    on_rank_0(lambda: _write(Path(path), sgd, extra), sgd.comm)


def load_checkpoint(path: str | os.PathLike[str], sgd: DistributedSGD) -> dict[str, Any]:
    """Collective: rank 0 reads what `save_checkpoint` wrote, and every rank gets it by broadcast.

    Parameters are overwritten in place; lr, momentum, weight_decay, nesterov and the velocity become the file's.

    Returns:
        `extra` of the save, as JSON gives it back.

    Raises:
        FileNotFoundError: there is no such file. ValueError, TypeError, KeyError, zipfile.BadZipFile: it is damaged,
        or of other parameters. Raised on every rank; nothing has changed then.
    """
    extra: dict[str, Any] = on_rank_0(lambda: _read(Path(path), sgd), sgd.comm)
    sgd.broadcast_parameters()
    sgd.broadcast_optimizer_state()
    return extra


def _write(path: Path, sgd: DistributedSGD, extra: dict[str, Any]) -> None:
    state = sgd.state_dict()
    velocity = state.pop("velocity")
    about = json.dumps({"format": FORMAT, "state": state, "moving": velocity is not None, "extra": extra})
    content = {
        "about": np.frombuffer(about.encode(), np.uint8),
        **{f"parameters/{name}": _to_numpy(array) for name, array in sgd.named(sgd.params).items()},
        **{f"velocity/{name}": _to_numpy(array) for name, array in sgd.named(velocity or {}).items()},
    }
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")  # the same folder: renaming is atomic there
    try:
        with open(partial, "wb") as file:
            np.savez(file, **content)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
