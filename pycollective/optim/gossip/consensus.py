"""How far the ranks' parameters are from agreement."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pycollective.comm.arguments import arrays
from pycollective.comm.world import given_or_world
from pycollective.optim.arrays.containers import Arrays, named
from pycollective.optim.arrays.devices import to_host
from pycollective.optim.objects import require_same

if TYPE_CHECKING:
    from pycollective.comm.communicator import Communicator


def consensus_distance(comm: Communicator | None, params: Arrays) -> float:
    """Collective: the root mean square distance of the ranks' parameters to their mean.

    With x_r the vector of all parameters of rank r and m the mean of the n vectors:

        sqrt(1/n * sum over r of |x_r - m|^2)

    computed in float64. Kong et al., "Consensus control for decentralized deep learning" (ICML 2021), equation 4.

    Args:
        comm: of the ranks; None: that of `pycollective.init`.
        params: a dict or list of floating-point arrays in CPU or GPU memory, of the same shapes on all ranks.

    Returns:
        the distance, the same on all ranks; 0 if all parameters are equal.

    Raises:
        TypeError: not arrays. MismatchError: names or shapes differ between ranks.
    """
    comm = given_or_world(comm)
    values = {name: _wide(name, array) for name, array in named(params).items()}
    require_same("\n".join(f"{name!r} of shape {x.shape}" for name, x in values.items()), comm)
    flat = np.concatenate([np.zeros(0), *(x.ravel() for x in values.values())])
    distance = flat - comm.allreduce(flat, op="avg")
    squares = comm.allreduce(np.array([float(distance @ distance)]), op="avg")
    return float(np.sqrt(squares[0]))


def _wide(name: str, array: object) -> np.ndarray:
    detached = array.detach() if hasattr(array, "detach") else array  # of torch, which exports no trained parameter
    found = to_host(detached, repr(name)) if arrays.on_device(detached) else arrays.readable(detached, repr(name))
    if "float" not in str(found.dtype):
        raise TypeError(f"{name!r} has dtype {found.dtype}; parameters are floating-point arrays")
    host = found if isinstance(found, np.ndarray) else found.array(arrays.numpy_dtype(found.dtype))
    return host.astype(np.float64)
