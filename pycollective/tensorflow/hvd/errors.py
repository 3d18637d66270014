"""Errors of the collectives as TensorFlow's, where they are executed eagerly; graph_calls has those of graphs."""

from __future__ import annotations

from typing import NoReturn

import tensorflow as tf

from pycollective.errors import MismatchError
from pycollective.hvd import basics
from pycollective.hvd.process_sets import ProcessSet


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
    """
    Raises:
        tf.errors.FailedPreconditionError: the ranks' calls do not match.
        tf.errors.InvalidArgumentError: invalid arguments, found before anything was sent.
        the error itself: any other, such as HorovodInternalError, when a rank was lost or has shut down.
    """
    if isinstance(error, MismatchError):
        raise tf.errors.FailedPreconditionError(None, None, str(error)) from error
    if isinstance(error, (ValueError, TypeError)):
        raise tf.errors.InvalidArgumentError(None, None, str(error)) from error
    raise error
