"""Key-value stores of other launchers and of torch, through which ranks learn where the others are.

Such a store is not authenticated: what it contains is checked, and it holds the job's token only if the user has set
none (see `token_from`).
"""

from __future__ import annotations

import re
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeAlias

from pycollective import settings
from pycollective.comm.bootstrap.rendezvous import name_ranks, ranks_have
from pycollective.comm.bootstrap.sockets.authentication import TOKEN_BYTES, parse_token
from pycollective.comm.bootstrap.sockets.dialling import Endpoint
from pycollective.comm.bootstrap.sockets.interfaces import choose_address
from pycollective.comm.bootstrap.tcp import listen
from pycollective.errors import BootstrapError

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.0005, 0.05  # seconds between questions for a key that is missing
_MOST_BYTES = 1 << 16  # of a value
_MOST_REASON = 1000
_TROUBLE = "trouble"  # a key
_THEIRS = "!"  # stands for a token that rank 0 has from its environment


class TorchStore:
    """One of torch.distributed's stores, called `where` in errors: keys without slashes, and their values."""

    def __init__(self, store: Any, where: str = "torch's store") -> None:
        self._store, self.where = store, where

    @staticmethod
    def of_torchrun(env: Mapping[str, str], rank: int, timeout: float) -> TorchStore:
        """torchrun's own TCPStore, at MASTER_ADDR:MASTER_PORT.

        Raises:
            BootstrapError: it cannot be reached.
        """
        from torch.distributed import TCPStore

        host, port = env["MASTER_ADDR"], int(env["MASTER_PORT"])
        where = f"torchrun's store at {host}:{port}"
        serves = rank == 0 and env.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        limit = timedelta(seconds=max(1.0, timeout))
        try:
            store = TCPStore(host, port, None, serves, limit, wait_for_workers=False, multi_tenant=True)
        except (RuntimeError, ValueError) as error:  # torch's errors of stores are RuntimeErrors
            raise BootstrapError(f"{_here(rank)} cannot reach {where}: {error}") from error
        return TorchStore(store, where)

    def count(self, key: str) -> int:
        """How often this has been called with a key, by all ranks together. Raises OSError as the others."""
        try:
            return int(self._store.add(key, 1))
        except RuntimeError as error:
            raise OSError(str(error)) from error

    def set(self, key: str, value: bytes) -> None:
        """Raises OSError if the store cannot be reached."""
        try:
            self._store.set(key, value)
        except RuntimeError as error:
            raise OSError(str(error)) from error

    def get(self, key: str, deadline: float) -> bytes | None:
        """The value once it is set; None: not until the deadline. Raises OSError if the store cannot be reached."""
        pause = _SHORTEST_PAUSE
        try:
            while not self._store.check([key]):  # wait() would hold the connection, which other threads wait for
                if time.monotonic() >= deadline:
                    return None
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
            return bytes(self._store.get(key))
        except RuntimeError as error:
            raise OSError(str(error)) from error


class HorovodStore:
    """The HTTP server of Horovod's launchers, at HOROVOD_GLOO_RENDEZVOUS_ADDR and _PORT. Methods: as TorchStore's."""

    def __init__(self, env: Mapping[str, str]) -> None:
        host, port = env["HOROVOD_GLOO_RENDEZVOUS_ADDR"], env["HOROVOD_GLOO_RENDEZVOUS_PORT"]
        self._address = f"{host}:{port}"
        self.where = f"the server of Horovod's launcher at {self._address}"

    def set(self, key: str, value: bytes) -> None:
        if self._ask("PUT", key, value) is None:
            raise OSError("it does not accept values")

    def get(self, key: str, deadline: float) -> bytes | None:
        while (value := self._ask("GET", key)) is None and time.monotonic() < deadline:
            time.sleep(_LONGEST_PAUSE)
        return value

    def _ask(self, method: str, key: str, value: bytes | None = None) -> bytes | None:
        """The body of the answer; None if its status is not 200."""
        import http.client

        connection = http.client.HTTPConnection(self._address, timeout=10)
        try:
            connection.request(method, f"/pycollective/{key}", value)
            answer = connection.getresponse()
            return answer.read(_MOST_BYTES) if answer.status == 200 else None
        except http.client.HTTPException as error:
            raise OSError(f"it is not an HTTP server ({error!r})") from error
        finally:
            connection.close()


Store: TypeAlias = TorchStore | HorovodStore


class StoreExchange:
    """The allgather of a Bootstrap through a store; for what need not be trusted.

    Args:
        store: to which any process that can reach it may write.
        rank, size, kind: as of a Bootstrap.
        prefix: of its keys, used by no other exchange.
        timeout: seconds to wait for the others in each call.
        group: the ranks, for errors.

    Raises (all methods):
        BootstrapError: ranks have not called in time, names them; the store cannot be reached, or does not hold what
            the ranks have stored.
    """

    def __init__(
        self, store: Store, rank: int, size: int, kind: str, prefix: str, timeout: float, group: str = "the job"
    ) -> None:
        self.rank, self.size, self.kind = rank, size, kind
        self._store, self._prefix, self._timeout, self._group = store, prefix, timeout, group
        self._calls = 0

    def allgather(
        self, data: bytes, timeout: float | None = None, form: re.Pattern[bytes] | None = None
    ) -> list[bytes]:
        """Every rank's data, in rank order, each checked against the pattern `form`."""
        call = self._calls
        self._calls += 1
        self.set(f"{call}-{self.rank}", data)
        deadline = time.monotonic() + (self._timeout if timeout is None else timeout)
        values = [self._get(f"{call}-{rank}", deadline) for rank in range(self.size)]
        if missing := [rank for rank, value in enumerate(values) if value is None]:
            raise BootstrapError(self._missing_text(missing))
        found = [value for value in values if value is not None]
        wrong = [rank for rank, value in enumerate(found) if form is not None and not form.fullmatch(value)]
        if wrong or found[self.rank] != data:
            ranks = name_ranks(wrong or [self.rank])
            raise BootstrapError(f"{self._store.where} does not hold the values that {ranks} of {self._group} stored")
        return found

    def set(self, key: str, value: bytes) -> None:
        try:
            self._store.set(f"{self._prefix}-{key}", value)
        except OSError as error:
            raise self._unreachable(error) from error

    def get(self, key: str, setter: int) -> bytes:
        value = self._get(key, time.monotonic() + self._timeout)
        if value is None:
            raise BootstrapError(self._missing_text([setter]))
        return value

    def set_trouble(self, reason: str) -> None:
        """Tell the other ranks why this one will not join them."""
        self.set(_TROUBLE, reason.encode()[:_MOST_REASON])

    def trouble(self) -> str:
        """Why a rank will not join the others; empty: none has told."""
        return (self._get(_TROUBLE, 0.0) or b"").decode(errors="replace")[:_MOST_REASON]

    def _get(self, key: str, deadline: float) -> bytes | None:
        try:
            return self._store.get(f"{self._prefix}-{key}", deadline)
        except OSError as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: OSError) -> BootstrapError:
        return BootstrapError(f"{_here(self.rank)} cannot reach {self._store.where}: {error}")

    def _missing_text(self, ranks: Sequence[int]) -> str:
        where, seconds = self._store.where, self._timeout
        return f"{ranks_have(ranks, self.size)} not joined {self._group} at {where} within {seconds:g} s"

    def close(self) -> None:
        """Nothing is open."""


def meet_through(exchange: StoreExchange, env: Mapping[str, str]) -> Callable[[], socket.socket | Endpoint]:
    """Make `meet` of `TcpBootstrap`: rank 0 listens at an address that all can reach, and publishes it."""

    def meet() -> socket.socket | Endpoint:
        try:
            address = choose_address(env, exchange)
        except (ValueError, UnicodeDecodeError):
            raise BootstrapError("the launcher's store contains what no rank has written") from None
        if exchange.rank:
            return Endpoint.unpack(exchange.get("endpoint", 0))
        listener = listen(address)
        exchange.set("endpoint", Endpoint(socket.gethostname(), *listener.getsockname()[:2]).pack())
        return listener

    return meet


def token_from(exchange: StoreExchange, env: Mapping[str, str]) -> bytes:
    """Collective: PYCOLLECTIVE_TOKEN, or one that rank 0 makes and puts into the store.

    Raises:
        BootstrapError: rank 0 has PYCOLLECTIVE_TOKEN, this rank has none.
    """
    text = settings.read("PYCOLLECTIVE_TOKEN", env)
    if exchange.rank == 0:
        token = parse_token(text) if text else secrets.token_bytes(TOKEN_BYTES)
        exchange.set("token", _THEIRS.encode() if text else token.hex().encode())
        return token
    given = exchange.get("token", 0).decode(errors="replace")
    if text:
        return parse_token(text)
    if given == _THEIRS:
        raise BootstrapError(
            f"PYCOLLECTIVE_TOKEN is set for rank 0, but not for {_here(exchange.rank)}: set it to the same on all hosts"
        )
    return parse_token(given)


def _here(rank: int) -> str:
    return f"rank {rank} on host {socket.gethostname()}"
