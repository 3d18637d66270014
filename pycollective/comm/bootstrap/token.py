"""The secret of a job that spans hosts: who knows it is a rank of the job."""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from pycollective import settings
from pycollective.comm.bootstrap.protocol import Bootstrap
from pycollective.errors import BootstrapError

TOKEN_BYTES = 16


def parse_token(text: str) -> bytes:
    """The token of PYCOLLECTIVE_TOKEN.

    Raises:
        BootstrapError: not 32 hexadecimal digits (the text is not repeated: it is a secret).
    """
    try:
        token = bytes.fromhex(text)
    except ValueError:
        token = b""
    if len(token) != TOKEN_BYTES:
        raise BootstrapError(
            f"PYCOLLECTIVE_TOKEN is not {2 * TOKEN_BYTES} hexadecimal digits; "
            f"`openssl rand -hex {TOKEN_BYTES}` prints a good one"
        )
    return token


def job_token(env: Mapping[str, str], bootstrap: Bootstrap) -> bytes:
    """Collective: the secret that all ranks of the job share, TOKEN_BYTES long.

    A bootstrap over TCP has needed it already. Through the others, which are trusted (the sockets of one host, MPI),
    rank 0 distributes PYCOLLECTIVE_TOKEN or, if that is not set, a random one: mpirun does not pass variables on.
    """
    token: bytes | None = getattr(bootstrap, "token", None)
    if token is not None:
        return token
    mine = b""
    if bootstrap.rank == 0:
        text = settings.read("PYCOLLECTIVE_TOKEN", env)
        mine = parse_token(text) if text else secrets.token_bytes(TOKEN_BYTES)
    return bootstrap.allgather(mine)[0]
