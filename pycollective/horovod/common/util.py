"""`horovod.common.util`: queries, and helpers that scripts and Horovod's own tests import."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import os
import re
import sysconfig
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from pycollective.hvd import built
from pycollective.hvd.arguments import (
    get_average_backwards_compatibility_fun as get_average_backwards_compatibility_fun,
)
from pycollective.hvd.arguments import split_evenly
from pycollective.hvd.built import num_rank_is_power_2 as num_rank_is_power_2

T = TypeVar("T")

EXTENSIONS = ["tensorflow", "torch", "mxnet"]
"""The frameworks that Horovod supports."""

split_list = split_evenly

_cache = functools.cache
"""Decorator: a function is called once for each combination of (hashable) arguments."""


def get_ext_suffix() -> str:
    """The suffix of compiled extension modules of this Python, such as ".cpython-311-x86_64-linux-gnu.so"."""
    return str(sysconfig.get_config_var("EXT_SUFFIX") or ".so")


def get_extension_full_path(pkg_path: str, *args: str) -> str:
    """Path of the extension module args[-1], in the folders args[:-1] next to the file `pkg_path`.

    Raises:
        ValueError: no `args`.
    """
    if not args:
        raise ValueError("get_extension_full_path needs the name of an extension module")
    return os.path.join(os.path.dirname(pkg_path), *args) + get_ext_suffix()


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Return whether a framework is supported and installed."""
    return ext_base_name in EXTENSIONS and importlib.util.find_spec(ext_base_name) is not None


def check_extension(ext_name: str, ext_env_var: str = "", pkg_path: Any = None, *args: Any) -> None:
    """Args: ext_name: e.g. "horovod.torch".

    Raises:
        ImportError: the framework is not supported, or not installed.
    """
    framework = ext_name.removeprefix("horovod.")
    if framework not in EXTENSIONS:
        raise ImportError(f"{ext_name}: pycollective has no binding for {framework}")
    if not extension_available(framework):
        raise ImportError(f"{ext_name}: {framework} is not installed")


def _check_extension_lambda(ext_base_name: str, fn: Callable[[Any], T], fn_desc: str, verbose: bool) -> T | None:
    """fn(the framework's module); None if the framework is not available, or if `fn` raises.

    Args:
        fn_desc: what a true result means, for the message ("built with MPI").
        verbose: print the outcome.
    """
    result = None
    if extension_available(ext_base_name):
        with contextlib.suppress(Exception):
            result = fn(importlib.import_module(f"pycollective.{ext_base_name}"))
    if verbose:
        print(f"Extension {ext_base_name} {'was' if result else 'was NOT'} {fn_desc}.")
    return result


def check_installed_version(name: str, version: str, exception: Exception | None = None) -> None:
    """Does nothing: pycollective is not built against a particular version of a framework."""


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Return whether operations of a framework take GPU tensors: those of torch, if it sees a GPU."""
    if ext_base_name != "torch" or not extension_available("torch"):
        return False
    import torch

    return bool(torch.cuda.is_available())


def mpi_built(verbose: bool = False) -> bool:
    """See pycollective.torch.mpi_built; likewise for the others."""
    return built.mpi_built()


def gloo_built(verbose: bool = False) -> bool:
    return built.gloo_built()


def nccl_built(verbose: bool = False) -> bool:
    return bool(built.nccl_built())


def ddl_built(verbose: bool = False) -> bool:
    return built.ddl_built()


def ccl_built(verbose: bool = False) -> bool:
    return built.ccl_built()


def is_iterable(value: Any) -> bool:
    """Return whether it supports iter()."""
    try:
        iter(value)
    except TypeError:
        return False
    return True


@contextlib.contextmanager
def env(**variables: str | None) -> Iterator[None]:
    """Environment variables in a with statement, restored afterwards; those given as None are unchanged."""
    wanted = {name: value for name, value in variables.items() if value is not None}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Return whether a version such as "2.13.0+cpu" is `target`, three numbers with dots, or a later one.

    Raises:
        ValueError: one of them is not a string, or `target` is not of that form.
    """
    if not isinstance(ver, str) or not isinstance(target, str):
        raise ValueError(f"versions must be strings, not {ver!r} ({type(ver).__name__}) and {target!r}")
    if not re.fullmatch(r"\d+\.\d+\.\d+", target):
        raise ValueError(f"target={target!r} is not of the form 1.2.3")
    parts = re.match(r"(\d+(?:\.\d+)*)\.?(a|b|rc|dev)?", ver)
    if parts is None:
        raise ValueError(f"ver={ver!r} is not a version")
    goal = [int(part) for part in target.split(".")]
    found = [int(part) for part in parts[1].split(".")]
    found += [0] * (len(goal) - len(found))
    return found > goal or (found == goal and not parts[2])  # 2.10.0a0 comes before 2.10.0
