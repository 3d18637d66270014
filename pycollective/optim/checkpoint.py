"""Checkpoints: rank 0 reads and writes the file, and communicates with the others."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from pycollective import checks
from pycollective.comm.arguments import arrays
from pycollective.comm.objects import on_root
from pycollective.comm.private_file import create, require_replaceable
from pycollective.optim.arrays import check_fit, copy_into, like, named, namespace, to_host
from pycollective.optim.averaging import Averaging

FORMAT = 2


def save_checkpoint(path: str | os.PathLike[str], optimizer: Averaging, **extra: Any) -> None:
    """Collective: rank 0 writes parameters and optimizer state to a .npz file, atomically.

    The file is renamed to its name once it is complete; the call returns on every rank when it exists. It contains
    arrays and JSON, no pickles: parameter k as "parameters/k", its velocity as "velocity/k", and so on.

    Args:
        path: the file, taken literally (no .npz is added); its folder must exist.
        optimizer: a DistributedSGD or a DistributedOptimizer.
        extra: further data to store, anything that JSON can represent: epoch=3.

    Raises:
        OSError: the file cannot be written; raised on every rank.
        TypeError: `extra` is not JSON, or a dtype that .npz cannot hold; raised on every rank.
    """
    file = _checked(path, optimizer)
    on_root(lambda: _write(file, optimizer, extra), 0, optimizer.comm)


def load_checkpoint(path: str | os.PathLike[str], optimizer: Averaging) -> dict[str, Any]:
    """Collective: rank 0 reads a file written by `save_checkpoint` and broadcasts the content.

    Parameters are overwritten in place; lr, momentum and the rest of `state_dict` are set to the file's.

    Args:
        path: the file.
        optimizer: of the same kind and the same parameters as the one that was saved.

    Returns:
        the `extra` that was saved, as decoded from JSON.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is damaged, has other names or shapes, or belongs to another optimizer.
        TypeError: another dtype.
            Each is raised on every rank, without any change.
    """
    file = _checked(path, optimizer)
    extra: dict[str, Any] = on_root(lambda: _restore(file, optimizer), 0, optimizer.comm)
    optimizer.broadcast_parameters()
    optimizer.broadcast_optimizer_state()
    return extra


def _checked(path: str | os.PathLike[str], optimizer: Averaging) -> Path:
    checks.instance(optimizer, "optimizer", Averaging, "a DistributedSGD or a DistributedOptimizer")
    file = Path(checks.path(path, "path"))
    if not file.name:
        checks.refuse_value("path", "the path of a file", path)
    return file


def _write(path: Path, optimizer: Averaging, extra: dict[str, Any]) -> None:
    state, kept = optimizer.take_apart()
    content = {
        **{f"parameters/{name}": _to_numpy(name, array) for name, array in named(optimizer.params).items()},
        **{f"{slot}/{name}": _to_numpy(name, array) for slot in kept for name, array in kept[slot].items()},
    }
    # The format supports NumPy's own dtypes only: bfloat16 and float8 are stored as integers.
    foreign = {name: array.dtype.name for name, array in content.items() if array.dtype.isbuiltin != 1}
    for name in foreign:
        content[name] = content[name].view(f"u{content[name].itemsize}")
    slots = {slot: list(values) for slot, values in kept.items()}
    about = {"format": FORMAT, "state": state, "dtypes": foreign, "kept": slots, "extra": extra}
    content["about"] = np.frombuffer(json.dumps(about).encode(), np.uint8)
    require_replaceable(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")  # in the same folder, where renaming is atomic
    try:
        with create(partial, 0o666) as file:
            np.savez(file, **content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The content of the file: (about, arrays by name)."""
    try:
        with np.load(path, allow_pickle=False) as file:
            stored = {name: file[name] for name in file.files}
        about: dict[str, Any] = json.loads(stored.pop("about").tobytes())
    except (EOFError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is not a checkpoint, or is damaged: {error}") from error
    if about["format"] != FORMAT:
        raise ValueError(f"{path} has format {about['format']}; this version reads {FORMAT}")
    for name, dtype in about["dtypes"].items():
        stored[name] = stored[name].view(arrays.numpy_dtype(dtype))
    return about, stored


def _restore(path: Path, optimizer: Averaging) -> Any:
    """Put the file's content into this rank's optimizer; returns `extra`."""
    about, stored = _read(path)
    params = named(optimizer.params)
    found = {name: _from_numpy(stored, f"parameters/{name}", p) for name, p in params.items()}
    check_fit(found, params)
    kept = {
        slot: {name: _from_numpy(stored, f"{slot}/{name}", params[name]) for name in names if name in params}
        for slot, names in about["kept"].items()
    }
    if stored:
        raise ValueError(f"{path} has further parameters: {', '.join(sorted(stored))}")
    if about["state"].keys() != optimizer.take_apart()[0].keys():
        raise ValueError(f"{path} is of another kind of optimizer")
    optimizer.put_together(about["state"], kept)
    copy_into(params, found)
    return about["extra"]


def _to_numpy(name: str, array: Any) -> Any:
    if isinstance(array, np.ndarray):
        return array
    if arrays.on_device(array):
        return to_host(array, repr(name))
    try:
        return np.from_dlpack(array)
    except (BufferError, RuntimeError):  # the latter from NumPy, for unsupported types
        raise TypeError(f"{name!r}: a .npz file cannot hold {array.dtype}") from None


def _from_numpy(stored: dict[str, Any], name: str, parameter: Any) -> Any:
    """Remove an array from `stored`, converted to the parameter's library and device."""
    if name not in stored:
        raise ValueError(f"the file has no {name}")
    array = stored.pop(name)
    xp = namespace(parameter)
    try:
        return like(array, parameter)
    except (BufferError, RuntimeError):
        raise TypeError(f"{name!r} is {array.dtype}, which {xp.__name__} cannot take from NumPy") from None
