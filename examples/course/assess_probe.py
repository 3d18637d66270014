"""One rank of an assessment: runs a student's script and records what it does; assess.py starts it and judges.

    python assess_probe.py FOLDER SECONDS script.py [ARGUMENTS]

The script is not changed. In FOLDER each rank leaves RANK.json, with the fields of `Record`; RANK.out, the text that it
has printed; and RANK.stack, where it was after SECONDS.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import functools
import hashlib
import importlib.abc
import importlib.util
import json
import os
import runpy
import sys
import traceback
from pathlib import Path
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
_parameters: dict[int, Any] = {}
"""Functions that return the digest of an optimizer's parameters, by the optimizer's id."""


def digest(*arrays: Any) -> str:
    """Of the contents of arrays of any library."""
    import numpy as np

    content = hashlib.sha256()
    for array in arrays:
        plain = array.detach().cpu().numpy() if hasattr(array, "detach") else np.asarray(array)
        content.update(np.ascontiguousarray(plain).tobytes())
    return content.hexdigest()[:16]


# -- what the engine is given: gradients before they are reduced, and broadcasts ------------------------------------


def note_item(comm: Any, item: Any) -> None:
    record.size = comm.size
    if item.collective == "broadcast":
        record.broadcasts += 1
    elif item.collective in ("allreduce", "adasum") and item.name.startswith("gradient."):
        if item.name in _step:  # the same gradient again: the next step has begun
            finish_step()
        if not item.name.endswith((".present", ".kinds")):
            _step[item.name] = digest(item.x) if record.steps < STEPS else ""


def finish_step() -> None:
    if _step and record.steps < STEPS:
        text = "".join(_step[name] for name in sorted(_step))
        record.gradients.append(hashlib.sha256(text.encode()).hexdigest()[:16])
    record.steps += bool(_step)
    _step.clear()


# -- wrappers, applied when a module is imported ----------------------------------------------------------------------


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
    _parameters[id(self)] = lambda: digest(*(p for _, p in named))


def note_keras_optimizer(self: Any, gradients: Any, variables: Any, *_: Any) -> None:
    _parameters[id(self)] = lambda: digest(*(v.numpy() if hasattr(v, "numpy") else v for v in variables))


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


def note_file(path: Any, mode: str = "r") -> None:
    if isinstance(path, (str, bytes, os.PathLike)):
        how = "written" if set(mode) & set("wax+") else "read"
        entry = [os.path.realpath(os.fsdecode(path)), how]
        if entry not in record.files and not entry[0].startswith(("/dev/", "/proc/")):
            record.files.append(entry)


def watch_torch_files(module: Any) -> None:  # they are opened by C++ code, which no audit hook sees
    before(module, "save", lambda obj, f, *_, **__: note_file(f, "w"))
    before(module, "load", lambda f, *_, **__: note_file(f))


WATCHED = {
    "data": watch_data,
    "pycollective.engine.jobs": lambda module: before(module, "check", note_item),
    "pycollective.torch.hvd.gradient_reducer": lambda m: before(m.Reducing, "start_reducing", note_torch_optimizer),
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


class Tee:
    """Standard output, also written to a file."""

    def __init__(self, screen: Any, file: Any) -> None:
        self._screen, self._file = screen, file

    def write(self, text: str) -> int:
        self._file.write(text)
        return int(self._screen.write(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._screen, name)


def main() -> int:
    folder, seconds, script = Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
    names = ("PYCOLLECTIVE_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
    rank = next(os.environ[name] for name in names if name in os.environ)
    faulthandler.dump_traceback_later(seconds, file=open(folder / f"{rank}.stack", "w"))  # noqa: SIM115  kept open to the end
    printed = open(folder / f"{rank}.out", "w", buffering=1)  # noqa: SIM115
    sys.stdout = Tee(sys.stdout, printed)
    sys.meta_path.insert(0, Watcher())
    sys.addaudithook(note_open)
    sys.argv = sys.argv[3:]
    sys.path[0] = str(Path(script).parent)
    sys.path.append(str(Path(__file__).parent))  # for `from data import load`
    import pycollective.horovod

    pycollective.horovod.install()  # `import horovod.torch` is pycollective.torch
    code = 0
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == script]
        record.error = f"line {lines[-1] if lines else '?'}: {type(error).__name__}: {error}"
        traceback.print_exc()
        code = 1
    finally:
        finish_step()
        record.parameters = [of() for of in _parameters.values()]
        (folder / f"{rank}.json").write_text(json.dumps(dataclasses.asdict(record)))
        sys.stdout = sys.__stdout__
    return code


if __name__ == "__main__":
    sys.exit(main())
