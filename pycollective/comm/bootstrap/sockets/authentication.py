"""Proof, both ways, that the other end of a TCP connection knows the job's token.

The end that has accepted the connection sends a random challenge. The one that has dialled answers with a random number
of its own, a claim (who it is, whom it wants, and what for) and an HMAC-SHA256 of all this under the token. Only if
that is right is the claim read; the first end then sends a verdict with an HMAC of the whole exchange. All messages
have fixed sizes. A stranger learns neither the token nor anything made from it that could be used again.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import struct
from dataclasses import dataclass

from pycollective.errors import BootstrapError

TOKEN_BYTES = 16
ACCEPTED, DUPLICATE, UNEXPECTED = 0, 1, 2
"""Verdicts."""
_REFUSALS = {
    DUPLICATE: "another process there claims the same rank",
    UNEXPECTED: "it expects no such connection: is it another rank?",
}
_MAGIC = b"pyc\1"  # the last byte is the version of the exchange
_NONCE, _MAC = 32, 32  # bytes
_CHALLENGE_BYTES = len(_MAGIC) + _NONCE
_CLAIM = struct.Struct(f"!III{_MAC}s")
_ANSWER_BYTES = _NONCE + _CLAIM.size + _MAC
_VERDICT_BYTES = 1 + _MAC
_DIALLED, _ACCEPTED, _PURPOSE = b"dialled ", b"accepted", b"purpose "  # of one length: no message stands for another


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


class AuthenticationError(ValueError):
    """The other end does not know the token, or has refused; the text completes "cannot reach ...: "."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Who dials whom, and what for.

    Attributes:
        rank, peer: of the end that dials, and of the one that is dialled.
        lane: number of the connection between the two.
        purpose: `digest` of what the connection is for.
    """

    rank: int
    peer: int
    lane: int
    purpose: bytes


def digest(token: bytes, purpose: bytes) -> bytes:
    """The form in which a purpose of any length is claimed; reveals nothing to those who do not know the token."""
    return _mac(token, _PURPOSE, purpose)


def _mac(token: bytes, role: bytes, text: bytes) -> bytes:
    return hmac.digest(token, role + text, "sha256")


class _Exchange:
    """Reads messages of known sizes from a nonblocking socket, and never a byte more."""

    def __init__(self, token: bytes) -> None:
        self._token, self._have, self._transcript = token, bytearray(), b""

    def _read(self, peer: socket.socket, size: int) -> bytes | None:
        """A message of `size` bytes once complete. Raises EOFError if the peer has closed."""
        while missing := size - len(self._have):
            try:
                got = peer.recv(missing)
            except BlockingIOError:
                return None
            if not got:
                raise EOFError
            self._have += got
        message, self._have = bytes(self._have), bytearray()
        return message


class AcceptingEnd(_Exchange):
    """The end that has accepted a connection: a lobby.Newcomer, which is later sent a verdict.

    Attributes:
        claim: the peer's, once `advance` has returned this.
    """

    claim: Claim

    def __init__(self, token: bytes, peer: socket.socket) -> None:
        super().__init__(token)
        self._transcript = _MAGIC + secrets.token_bytes(_NONCE)
        _send(peer, self._transcript)

    def advance(self, peer: socket.socket) -> AcceptingEnd | None:
        """Itself, once the peer has proved that it knows the token.

        Raises:
            AuthenticationError: the peer does not know the token. OSError, EOFError: the connection has ended.
        """
        answer = self._read(peer, _ANSWER_BYTES)
        if answer is None:
            return None
        text, proof = answer[:-_MAC], answer[-_MAC:]
        if not hmac.compare_digest(proof, _mac(self._token, _DIALLED, self._transcript + text)):
            raise AuthenticationError("another token")
        self._transcript += answer
        self.claim = Claim(*_CLAIM.unpack_from(text, _NONCE))
        return self

    def send_verdict(self, peer: socket.socket, verdict: int) -> None:
        """Send the verdict, once, after the claim was read: ACCEPTED, DUPLICATE or UNEXPECTED."""
        code = bytes([verdict])
        _send(peer, code + _mac(self._token, _ACCEPTED, self._transcript + code))


class DiallingEnd(_Exchange):
    """The end that has dialled: `advance` until it returns True."""

    def __init__(self, token: bytes, claim: Claim) -> None:
        super().__init__(token)
        self._claim = claim

    @property
    def answered(self) -> bool:
        return bool(self._transcript)

    def advance(self, peer: socket.socket) -> bool:
        """Do what is possible now; True once both ends have proved that they know the token.

        Raises:
            AuthenticationError: the other end does not know the token, or has refused.
            OSError, EOFError: the connection has ended.
        """
        if not self._transcript:
            challenge = self._read(peer, _CHALLENGE_BYTES)
            if challenge is None:
                return False
            self._answer(peer, challenge)
        verdict = self._read(peer, _VERDICT_BYTES)
        if verdict is None:
            return False
        code, proof = verdict[:1], verdict[1:]
        if not hmac.compare_digest(proof, _mac(self._token, _ACCEPTED, self._transcript + code)):
            raise AuthenticationError("what listens there has another token: it belongs to another job")
        if code[0] != ACCEPTED:
            raise AuthenticationError(_REFUSALS.get(code[0], f"refused for an unknown reason ({code[0]})"))
        return True

    def _answer(self, peer: socket.socket, challenge: bytes) -> None:
        if not challenge.startswith(_MAGIC):
            raise AuthenticationError("what listens there is not pycollective, or another version of it")
        claim = self._claim
        text = secrets.token_bytes(_NONCE) + _CLAIM.pack(claim.rank, claim.peer, claim.lane, claim.purpose)
        answer = text + _mac(self._token, _DIALLED, challenge + text)
        _send(peer, answer)
        self._transcript = challenge + answer


def _send(peer: socket.socket, message: bytes) -> None:
    """Send a short message: a new connection has room for it."""
    if peer.send(message) != len(message):
        raise OSError("no room for a short message in a new connection")
