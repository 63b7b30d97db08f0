"""The processes of one run meet before they compute, and each proves that it knows the run's token.

Rank 0 listens, the others connect. Both ends send a random number, and each answers with a keyed hash (HMAC-SHA256)
of both numbers; they send nothing else before that. The handshake of `multiprocessing.connection` has no time limit, so
a process that connects and sends nothing would stop the run; and in Python 3.11 it uses HMAC-MD5.

What follows is neither encrypted nor signed, and so are gradients and weights, which the engines send: run ranks only
on a network whose machines you trust.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import math
import secrets
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

from duoln.distributed.rank_info import RankInfo
from duoln.errors import RankError, UsageError

MEETING_SECONDS = 300.0
"""The time for which a rank waits for the others to be started."""
SILENT_SECONDS = 10.0
"""The time after which a waiting rank names the missing ones."""
PROOF_SECONDS = 5.0
"""The time limit of a connection's handshake. Rank 0 hears one connection after another."""

_NONCE_BYTES = _PROOF_BYTES = 32
_LONGEST_MESSAGE = 1 << 20
_POLL_SECONDS = 0.05


class Channel:
    """A connection whose two ends have proved that they know the token, with messages that JSON can hold.

    Args:
        connection: the socket.
        deadline: the end of all waits, a time of `time.monotonic`.
    """

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self._connection, self.deadline = connection, deadline
        self.host: str = connection.getsockname()[0]
        self.close = connection.close

    def send(self, message: object) -> None:
        """Send a message."""
        body = json.dumps(message).encode()
        self._connection.sendall(struct.pack(">I", len(body)) + body)

    def receive(self) -> Any:
        """The next message.

        Raises:
            OSError: the other end is gone or silent, or sends what is no message.
        """
        [length] = struct.unpack(">I", _read(self._connection, 4, self.deadline))
        if length > _LONGEST_MESSAGE:
            raise ConnectionError(f"it sent a message of {length} bytes")
        try:
            return json.loads(_read(self._connection, length, self.deadline))
        except ValueError as error:
            raise ConnectionError(f"it sent a message that is no JSON: {error}") from error


class Meeting:
    """All ranks of a run, connected to rank 0.

    Attributes:
        rank: the rank of this process.
        size: the number of ranks.
        host: the address of this machine at which the others reach it.
    """

    def __init__(self, info: RankInfo, host: str, channels: dict[int, Channel]) -> None:
        self.rank, self.size, self.host = info.rank, info.size, host
        self._token, self._channels = info.token, channels

    def gather(self, value: object) -> list[Any]:
        """The values of all ranks, by rank; returns when all have given theirs.

        Raises:
            RankError: another rank is gone or silent.
        """
        lost = 0
        try:
            if self.rank:
                self._channels[0].send(value)
                values: list[Any] = self._channels[0].receive()
                return values
            values = [value]
            for lost in range(1, self.size):
                values.append(self._channels[lost].receive())
            for lost in range(1, self.size):
                self._channels[lost].send(values)
            return values
        except OSError as error:
            self.close()  # so that the other ranks notice it at once
            raise RankError(f"[ranks] rank {self.rank} lost rank {lost} before training: {error}") from error

    def secret(self, purpose: str) -> bytes:
        """32 bytes that cannot be computed without the token."""
        return _hash(self._token, b"secret" + purpose.encode())

    def close(self) -> None:
        """End all connections."""
        for channel in self._channels.values():
            channel.close()


def meet(info: RankInfo, library: str, tell: Callable[[str], None], seconds: float = MEETING_SECONDS) -> Meeting:
    """Meet the other ranks.

    Args:
        info: our rank, and the address at which rank 0 listens.
        library: the array library, which has to be the same on all.
        tell: called with a sentence about each refused connection, and one about a long wait.
        seconds: the time for which to wait for the others.

    Raises:
        UsageError: two ranks have the same number, or their settings differ.
        RankError: the others did not come, or rank 0 cannot be reached or does not know the token.
    """
    deadline = time.monotonic() + seconds
    if info.rank == 0:
        try:
            listener = _listen(info)
        except OSError as error:
            raise RankError(f"[ranks] rank 0 cannot listen at {info.meeting}: {error}; name an address of this "
                            "machine and a free port") from error
        with listener, contextlib.ExitStack() as opened:
            channels = _admit(listener, info, library, tell, deadline, opened)
            opened.pop_all()
            return Meeting(info, listener.getsockname()[0], channels)
    with contextlib.ExitStack() as opened:
        channel = _reach(info, tell, deadline)
        opened.callback(channel.close)
        try:
            channel.send({"rank": info.rank, "size": info.size, "library": library})
            answer = channel.receive()
        except OSError as error:
            raise RankError(f"[ranks] rank {info.rank} lost rank 0 before all had met: {error}") from error
        if answer != "welcome":
            raise UsageError(f"[ranks] {answer}")
        opened.pop_all()
        return Meeting(info, channel.host, {0: channel})


def _listen(info: RankInfo) -> socket.socket:
    if info.listener is not None:
        return socket.socket(fileno=info.listener)
    return socket.create_server((info.host, info.port), backlog=info.size + 16)


def _admit(listener: socket.socket, info: RankInfo, library: str, tell: Callable[[str], None], deadline: float,
           opened: contextlib.ExitStack) -> dict[int, Channel]:
    """The channels to ranks 1 to size - 1."""
    channels: dict[int, Channel] = {}
    listener.settimeout(_POLL_SECONDS)
    silent_until = time.monotonic() + SILENT_SECONDS
    while len(channels) < info.size - 1:
        now = time.monotonic()
        missing = ", ".join(str(rank) for rank in range(1, info.size) if rank not in channels)
        if now > deadline:
            raise RankError(f"[ranks] rank 0 waited at {info.meeting} and did not meet rank {missing}; start every "
                            "rank with the same token and meeting point")
        if now >= silent_until:
            tell(f"ranks: rank 0 waits at {info.meeting}, which is {listener.getsockname()[0]} here, for rank "
                 f"{missing}, for {deadline - now:.0f} s more")
            silent_until = math.inf
        try:
            connection, address = listener.accept()
        except (TimeoutError, ConnectionAbortedError):
            continue
        channel = Channel(connection, min(time.monotonic() + PROOF_SECONDS, deadline))
        try:
            _welcome(connection, info.token, channel.deadline)
            hello = channel.receive()
        except OSError as error:
            connection.close()
            tell(f"ranks: refused a connection from {address[0]}:{address[1]}: {error}")
            continue
        opened.callback(channel.close)
        channel.deadline = deadline
        refusal = _refusal(hello, info, library, channels)
        with contextlib.suppress(OSError):  # a rank that has ended meanwhile is noticed at the first exchange
            channel.send(refusal or "welcome")
        if refusal:
            raise UsageError(f"[ranks] {refusal}")
        channels[hello["rank"]] = channel
    return channels


def _refusal(hello: dict[str, Any], info: RankInfo, library: str, channels: dict[int, Channel]) -> str:
    rank = hello["rank"]
    if hello["size"] != info.size:
        return f"expected {info.size} ranks, as rank 0 was told; found {hello['size']} on rank {rank}"
    if hello["library"] != library:
        return f"expected one backend on all ranks, found {library} on rank 0 and {hello['library']} on rank {rank}"
    if rank in channels or rank == 0:
        return f"expected one process a rank, found two that are rank {rank}"
    return ""


def _reach(info: RankInfo, tell: Callable[[str], None], deadline: float) -> Channel:
    """Our channel to rank 0. Rank 0 may not listen yet, so this tries again until the deadline."""
    silent_until = time.monotonic() + SILENT_SECONDS
    while True:
        try:
            connection = socket.create_connection((info.host, info.port), timeout=PROOF_SECONDS)
        except OSError as error:
            now = time.monotonic()
            if now > deadline:
                raise RankError(f"[ranks] rank {info.rank} cannot reach rank 0 at {info.meeting}: {error}") from error
            if now >= silent_until:
                tell(f"ranks: rank {info.rank} cannot reach rank 0 at {info.meeting} yet, and tries for "
                     f"{deadline - now:.0f} s more: {error}")
                silent_until = math.inf
            time.sleep(_POLL_SECONDS)
            continue
        try:
            _introduce(connection, info.token, deadline)  # rank 0 may answer other connections first
        except OSError as error:
            connection.close()
            raise RankError(f"[ranks] rank {info.rank}: who listens at {info.meeting} is not rank 0 of this run, or "
                            f"has another token: {error}") from error
        return Channel(connection, deadline)


# The handshake --------------------------------------------------------------------------------------------

def _welcome(connection: socket.socket, token: bytes, deadline: float) -> None:
    """Rank 0's side of the handshake. The other end proves itself first: one without the token learns nothing."""
    own = secrets.token_bytes(_NONCE_BYTES)
    connection.sendall(own)
    answer = _read(connection, _NONCE_BYTES + _PROOF_BYTES, deadline)
    _check_proof(answer[_NONCE_BYTES:], token, b"member" + own + answer[:_NONCE_BYTES])
    connection.sendall(_hash(token, b"first" + own + answer[:_NONCE_BYTES]))


def _introduce(connection: socket.socket, token: bytes, deadline: float) -> None:
    """The other ranks' side of `_welcome`."""
    first, own = _read(connection, _NONCE_BYTES, deadline), secrets.token_bytes(_NONCE_BYTES)
    connection.sendall(own + _hash(token, b"member" + first + own))
    _check_proof(_read(connection, _PROOF_BYTES, deadline), token, b"first" + first + own)


def _check_proof(proof: bytes, token: bytes, message: bytes) -> None:
    if not hmac.compare_digest(proof, _hash(token, message)):
        raise ConnectionError("it does not know this run's token")


def _hash(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, "sha256")


def _read(connection: socket.socket, count: int, deadline: float) -> bytes:
    """Exactly `count` bytes.

    Raises:
        OSError: the other end closed the connection, or was too slow.
    """
    parts = bytearray()
    while len(parts) < count:
        connection.settimeout(max(deadline - time.monotonic(), 1e-3))
        part = connection.recv(count - len(parts))
        if not part:
            raise ConnectionError("it closed the connection")
        parts += part
    return bytes(parts)
