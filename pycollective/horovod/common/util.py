"""`horovod.common.util`: what can be used, and small helpers that scripts took from there."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from pycollective.torch import mpi_ops

T = TypeVar("T")


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether a framework can be used: "torch" alone."""
    return ext_base_name == "torch"


def check_extension(ext_name: str, ext_env_var: str = "", pkg_path: Any = None, *args: Any) -> None:
    """Args: ext_name: "horovod.torch", say.

    Raises:
        ImportError: another framework than torch.
    """
    if not extension_available(ext_name.removeprefix("horovod.")):
        raise ImportError(f"{ext_name}: pycollective stands in for horovod.torch only")


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether torch sees a GPU."""
    import torch

    return extension_available(ext_base_name) and bool(torch.cuda.is_available())


def mpi_built(verbose: bool = False) -> bool:
    """See pycollective.torch.mpi_built; so the others."""
    return mpi_ops.mpi_built()


def gloo_built(verbose: bool = False) -> bool:
    return mpi_ops.gloo_built()


def nccl_built(verbose: bool = False) -> bool:
    return bool(mpi_ops.nccl_built())


def ddl_built(verbose: bool = False) -> bool:
    return mpi_ops.ddl_built()


def ccl_built(verbose: bool = False) -> bool:
    return mpi_ops.ccl_built()


def num_rank_is_power_2(num_rank: int) -> bool:
    """Whether a number of ranks is a power of two; Horovod's Adasum needed one."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def split_list(values: Sequence[T], parts: int) -> list[Sequence[T]]:
    """`parts` pieces of a list, in order, whose lengths differ by at most one; the longer ones first."""
    least, more = divmod(len(values), parts)
    ends = [least * (i + 1) + min(i + 1, more) for i in range(parts)]
    return [values[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def is_iterable(value: Any) -> bool:
    """Whether iter() takes it."""
    try:
        iter(value)
    except TypeError:
        return False
    return True


@contextlib.contextmanager
def env(**variables: str | None) -> Iterator[None]:
    """Environment variables in a with statement; None takes one away. Afterwards they are as before."""
    before = {name: os.environ.get(name) for name in variables}
    _set(variables)
    try:
        yield
    finally:
        _set(before)


def _set(variables: dict[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Whether a version such as "2.13.0+cpu" is `target`, three numbers with dots, or a later one.

    Raises:
        ValueError: `target` is something else.
    """
    if not re.fullmatch(r"\d+\.\d+\.\d+", target):
        raise ValueError(f"target={target!r} is not of the form 1.2.3")
    parts = re.match(r"(\d+(?:\.\d+)*)\.?(a|b|rc|dev)?", ver)
    found = [int(part) for part in parts[1].split(".")] if parts else []
    goal = [int(part) for part in target.split(".")]
    return found > goal or (found == goal and parts is not None and not parts[2])  # 2.10.0a0 comes before 2.10.0
