"""Whether GPUs can be used here, and the extension that uses them."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from pycollective.errors import CommunicatorError

_usable: list[Any] = [None]


def why_not() -> str | None:
    """Why no GPU can be used here, in one sentence; None if one can."""
    try:
        module = importlib.import_module("pycollective._cuda")
    except ImportError as error:
        if "pycollective._cuda" in str(error):
            return (
                "pycollective was installed without its GPU side (no GPU, no nvcc 12.4 or newer, or PC_CUDA=OFF); with "
                "the CUDA toolkit, `PC_CUDA=ON pip install .` in a clone builds it"
            )
        return f"pycollective's GPU side does not load: {error}"
    reason: str | None = module.why_no_device()
    return reason


def load() -> Any:
    """`pycollective._cuda`, if a GPU can be used.

    Raises:
        CommunicatorError: there is no GPU path on this system; states why.
    """
    module = sys.modules.get("pycollective._cuda")
    if module is None or module is not _usable[0]:  # checked once: every call passes here
        reason = why_not()
        if reason is not None:
            raise CommunicatorError(f"no GPU path: {reason}")
        module = _usable[0] = sys.modules["pycollective._cuda"]
    return module


def device_number(device: str | int) -> int:
    """The number of "cuda" (the current device), "cuda:1" or 1.

    Raises:
        ValueError: not a CUDA device.
    """
    if isinstance(device, int):
        return device
    name, _, number = str(device).partition(":")
    if name != "cuda" or (number and not number.isdecimal()):
        raise ValueError(f"device must be 'cuda', 'cuda:N' or a number, not {device!r}")
    return int(number) if number else int(load().current_device())
