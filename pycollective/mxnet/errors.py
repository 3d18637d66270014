"""Errors of operations on NDArrays: MXNet's own class, which scripts catch, as well as the one of this library."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from mxnet.base import MXNetError

from pycollective.errors import MismatchError


class NDArrayMismatchError(MXNetError, MismatchError):
    """The ranks' calls, parameters or gradients do not match; on every rank, with the differences."""


class NDArrayValueError(MXNetError, ValueError):
    """An invalid argument, rejected before anything was sent."""


@contextlib.contextmanager
def mxnet_errors() -> Iterator[None]:
    """Convert errors to those that are MXNet's too. HorovodInternalError is none of MXNet's and stays as it is."""
    try:
        yield
    except MXNetError:
        raise
    except MismatchError as error:
        raise NDArrayMismatchError(str(error)) from error
    except (ValueError, NotImplementedError) as error:
        raise NDArrayValueError(str(error)) from error
