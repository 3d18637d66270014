"""What a rank of an assessment watches: functions of modules, replaced once these are imported, and opened files."""

from __future__ import annotations

import functools
import importlib.abc
import importlib.util
import os
from typing import Any

from probe_record import digest, note_file, note_item, parameters, record


def before(owner: Any, name: str, note: Any) -> None:
    """Let `note` be called with the arguments of owner.name before that is."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        note(*args, **kwargs)
        return original(*args, **kwargs)

    setattr(owner, name, wrapped)


def watch_basics(module: Any) -> None:
    original = module.init

    @functools.wraps(original)
    def init(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        record.size = module.size()
        return result

    module.init = init


def note_torch_optimizer(self: Any, optimizer: Any, named: Any, *_: Any) -> None:
    parameters[id(self)] = lambda: digest(*(p for _, p in named))


def note_keras_optimizer(self: Any, gradients: Any, variables: Any, *_: Any) -> None:
    parameters[id(self)] = lambda: digest(*(v.numpy() if hasattr(v, "numpy") else v for v in variables))


def note_loader(self: Any) -> None:
    import torch

    if torch.is_grad_enabled() and self.batch_sampler is not None:  # a pass of training
        record.longest = max(record.longest, len(self.sampler))


def note_fit(self: Any, x: Any = None, *args: Any, **kwargs: Any) -> None:
    if hasattr(x, "shape") and kwargs.get("steps_per_epoch") is None:
        record.longest = max(record.longest, len(x))


def watch_data(module: Any) -> None:
    original = module.load

    @functools.wraps(original)
    def load(*args: Any, **kwargs: Any) -> Any:
        loaded = original(*args, **kwargs)
        record.images = len(loaded.train_x)
        return loaded

    module.load = load


def watch_torch_files(module: Any) -> None:  # they are opened by C++ code, which no audit hook sees
    before(module, "save", lambda obj, f, *_, **__: note_file(f, "w"))
    before(module, "load", lambda f, *_, **__: note_file(f))


WATCHED = {
    "data": watch_data,
    "pycollective.engine.jobs": lambda module: before(module, "check", note_item),
    "pycollective.torch.hvd.gradient_reducer": lambda m: before(
        m.GradientReducer, "start_reducing", note_torch_optimizer
    ),
    "pycollective.keras.reduction": lambda module: before(module.GradientReduction, "__call__", note_keras_optimizer),
    "pycollective.hvd.basics": watch_basics,
    "torch.utils.data.dataloader": lambda module: before(module.DataLoader, "__iter__", note_loader),
    "torch.serialization": watch_torch_files,
    "keras.src.models.model": lambda module: before(module.Model, "fit", note_fit),
    "h5py._hl.files": lambda module: before(
        module.File, "__init__", lambda _, f, mode="r", *a, **k: note_file(f, mode)
    ),
}
"""Name of a module -> what to do to it once it has been imported."""


class Watcher(importlib.abc.MetaPathFinder):
    """Applies WATCHED to modules after they have been executed."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name not in WATCHED:
            return None
        watch = WATCHED.pop(name)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                execute(module)
                watch(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def note_open(event: str, args: Any) -> None:
    """Audit hook: files opened by Python under the working directory."""
    if event == "open" and isinstance(args[0], (str, bytes, os.PathLike)):
        flags = args[2] or 0
        written = set(args[1] or "") & set("wax+") or flags & (os.O_WRONLY | os.O_RDWR)
        path = os.path.realpath(os.fsdecode(args[0]))
        if path.startswith(os.getcwd() + os.sep) and not path.endswith(".pyc"):
            note_file(path, "w" if written else "r")
