"""Errors of the collectives as TensorFlow's, where they are executed eagerly; graph_calls has those of graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn, TypeVar

import tensorflow as tf

from pycollective.errors import MismatchError
from pycollective.hvd import basics
from pycollective.hvd.process_sets import ProcessSet

_T = TypeVar("_T")


def translated(run: Callable[[], _T]) -> _T:
    """The result of a function.

    Raises:
        tf.errors.FailedPreconditionError: the ranks' calls do not match.
        tf.errors.InvalidArgumentError: invalid arguments, found before anything was sent.
        HorovodInternalError: a rank was lost or has shut down.
    """
    try:
        return run()
    except Exception as error:
        raise_translated(error)


def require_member(process_set: ProcessSet) -> None:
    """
    Raises:
        ValueError: init() was not called, or the set is not registered.
        tf.errors.InvalidArgumentError: this rank is not in it.
    """
    try:
        basics.engine_of(process_set)
    except ValueError as error:
        if not basics.is_initialized() or process_set.process_set_id not in basics.process_set_ranks():
            raise
        raise_translated(error)


def raise_translated(error: Exception) -> NoReturn:
    """Raise an error of the engine as described above, or unchanged."""
    if isinstance(error, MismatchError):
        raise tf.errors.FailedPreconditionError(None, None, str(error)) from error
    if isinstance(error, (ValueError, TypeError)):
        raise tf.errors.InvalidArgumentError(None, None, str(error)) from error
    raise error
